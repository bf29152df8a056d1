"""AsyncLLM and its parts: from a request's text to tokens on an engine, and back. Runs on the event loop; no
torch.

Reading order: async_llm.py, journal.py and live_request.py, dispatcher.py, request_queue.py and engine_room.py
(when a request is sent), router.py (which engine, with engine_load.py and cache_index.py), migration.py,
resumes.py and strikes.py (requests of lost engines), kv_source.py (where KV blocks are), hand_overs.py
(engines that drain), holding.py and unavailability.py (no engine is ready), gate.py (idle services),
engine_starts.py, wave_starts.py, output_processor.py, collector.py, calls.py, service_limits.py, known_ranks.py,
request_errors.py, request_observer.py; then input/ (text to tokens) and text/ (tokens to text).
"""
