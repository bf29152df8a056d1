"""ZMQ sockets between Kvasir's processes.

Reading order: address.py, keys.py, heartbeats.py, sockets.py, reactor.py, client_socket.py,
peer.py, server_socket.py, death_watch.py, connection_keeper.py.
"""
