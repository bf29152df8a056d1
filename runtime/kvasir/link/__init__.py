"""The link between frontends and engines.

Reading order: protocol.py (messages), codec.py (versions), frontend_end/, engine_end/.
"""
