"""Groups of ranks that compute one model together.

Reading order: group.py, one_shot.py, torch_group.py, gloo.py, parallel_state.py, stage.py, tcp_rendezvous.py,
start.py, nccl.py; then, for engines that share experts, meeting_point.py and engine_groups.py.
"""
