"""The frontend's end of the link: one ROUTER socket on the event loop.

Reading order: link_events.py, remote_engine.py, frontend_link.py (the engines), terms.py (which are accepted),
silence_watch.py and connection_probe.py (how losses are noticed), link_sockets.py, loop_socket.py.
"""
