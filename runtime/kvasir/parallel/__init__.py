"""Groups of ranks that compute one model together.

Reading order: group.py, one_shot.py, torch_group.py, gloo.py, parallel_state.py, stage.py, tcp_rendezvous.py,
start.py, nccl.py (ranks of an engine); meeting_point.py, engine_groups.py (engines that share experts).
"""
