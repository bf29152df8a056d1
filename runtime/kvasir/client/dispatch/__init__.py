"""Which engine gets which request, and when.

Reading order: dispatcher.py, request_queue.py, holding.py, unavailability.py; assignment.py; router.py,
engine_load.py, cache_index.py, kv_source.py.
"""
