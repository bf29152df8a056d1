"""Groups of ranks that compute one model together.

Reading order: group.py, torch_group.py, gloo.py, parallel_state.py, stage.py, tcp_rendezvous.py, start.py.
"""
