"""The engine: which requests compute what, step by step, over a paged KV cache.

Reading order: process.py (from settings to a serving loop), loop.py (a step from messages to outputs), core.py,
scheduler.py with request.py, gates.py and block_pool.py; link.py for the frontends, ops.py for probes and metrics.
"""
