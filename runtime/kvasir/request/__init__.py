"""What frontend and engine both say about a request.

Reading order: request_core.py, params.py, constraint.py, tokens.py, hashing.py, request_digest.py.
"""
