"""The frontend's end of the link: one ROUTER socket on the event loop; events out, messages in.

Reading order: link_events.py, remote_engine.py (state of an engine), frontend_link.py (the engines on the link),
terms.py (which engines are accepted), silence_watch.py and connection_probe.py (how losses are noticed),
link_sockets.py, loop_socket.py.
"""
