"""What frontend and engine both say about a request.

Reading order: params.py, constraint.py, tokens.py, hashing.py, request_digest.py.
"""
