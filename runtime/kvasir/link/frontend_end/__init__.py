"""The frontend's end of the link: one ROUTER socket on the event loop.

Reading order: remote_engine.py (an engine's state), frontend_link.py (who is on the link), link_sockets.py,
loop_socket.py, bind.py, client_key_check.py.
"""
