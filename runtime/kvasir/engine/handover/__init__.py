"""KV hand-over: an engine fetches the KV blocks of a prompt from another engine instead of computing them.

Reading order: messages.py, block_server.py and block_fetch.py (the two ends), exchange.py (their thread),
hand_over.py (the step loop's side).
"""
