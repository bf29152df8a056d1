"""KV hand-over: engines fetch KV blocks from each other.

Reading order: messages.py, block_server.py, block_fetch.py, exchange.py, hand_over.py.
"""
