"""AsyncLLM and its parts: from a request's text to tokens on an engine, and back. Runs on the event loop; no
torch.

Reading order: async_llm.py, journal.py and live_request.py, output_processor.py, collector.py, zero_gate.py (idle
services), calls.py, service_limits.py, known_ranks.py, request_errors.py, request_observer.py; then dispatch/
(when a request is sent, and to which engine), moves/ (when another engine continues it), input/ (text to tokens)
and text/ (tokens to text).
"""
