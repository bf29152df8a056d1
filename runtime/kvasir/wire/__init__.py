"""ZMQ sockets between Kvasir's processes: addresses, keys, and the event loop of a thread.

Reading order: address.py, bind.py, keys.py, curve.py, heartbeats.py, sockets.py, reactor.py, client_socket.py, then
death_watch.py
and connection_keeper.py (the connections of a killed engine).
"""
