"""ZMQ sockets between Kvasir's processes: keys, addresses and the event loop of a thread.

Reading order: address.py, keys.py, curve.py, sockets.py, reactor.py.
"""
