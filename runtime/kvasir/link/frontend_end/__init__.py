"""The frontend's end of the link: one ROUTER socket on the event loop.

Reading order: link_events.py, remote_engine.py, frontend_link.py, terms.py, link_sockets.py, loop_socket.py.
"""
