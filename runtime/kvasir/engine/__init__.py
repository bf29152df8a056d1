"""The engine: decides which requests compute what, step by step, over a paged KV cache.

Reading order: engine_process.py (from settings to a serving loop), build.py, ingest.py and inbox.py (requests from
the link's thread to the loop), loop.py (one step, from messages to outputs), core.py; waves.py, shared_experts.py
(engines that step together); then the folders scheduling/ (who runs), kv/ (which blocks), health/ (status,
metrics, watchdog) and grammar/ (which tokens).
"""
