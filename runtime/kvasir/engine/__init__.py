"""The engine: decides step by step which requests compute what, over a paged KV cache.

Reading order: engine_request.py, engine_process.py, build.py, ingest.py, inbox.py, loop.py, drain.py, core.py,
waves.py; then scheduling/, drafting/, kv/, health/, grammar/ and handover/.
"""
