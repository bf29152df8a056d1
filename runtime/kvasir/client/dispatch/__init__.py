"""When a request is sent to an engine, and to which one.

Reading order: dispatcher.py, request_queue.py and engine_room.py (when), router.py (which engine, with
engine_load.py and cache_index.py), holding.py and unavailability.py (no engine is ready), engine_starts.py,
wave_starts.py.
"""
