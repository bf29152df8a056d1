"""AsyncLLM and its parts: from a request's text to tokens on an engine, and back. No torch.

Reading order: async_llm.py, journal.py, live_request.py, output_processor.py; dispatch/, moves/
(another engine continues), input/ (text to tokens), text/ (tokens to text); zero_gate.py, calls.py,
service_limits.py.
"""
