"""The link between frontends and engines: messages, addresses, keys and sockets, and both ends of it.

Reading order: protocol.py (every message), codec.py (versions), address.py, keys.py, sockets.py; then frontend_end/
and engine_end/.
"""
