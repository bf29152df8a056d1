"""An engine over several pods: node 0 leads, the other nodes are members.

Reading order: node_messages.py, addresses.py, lead.py, leader_socket.py, leader.py,
member_answers.py (the engine's side), leader_connection.py, member_status.py, member_process.py (a member's side),
ray_nodes.py.
"""
