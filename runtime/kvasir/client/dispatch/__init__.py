"""Which engine gets which request, and when.

Reading order: dispatcher.py, request_queue.py, holding.py, unavailability.py; engine_room.py, assignment.py,
wave_starts.py; router.py, engine_load.py, cache_index.py, kv_source.py.
"""
