"""The link between frontends and engines: its messages and both ends of it.

Reading order: protocol.py (every message), codec.py (versions); then frontend_end/
and engine_end/.
"""
