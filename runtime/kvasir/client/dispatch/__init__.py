"""Which engine gets which request, and when. Read dispatcher.py, request_queue.py (order), holding.py (waiting without
engines), unavailability.py; then eligibility.py, engine_room.py, assignment.py, wave_starts.py; then router.py,
engine_choice.py, engine_load.py, cache_index.py.
"""
