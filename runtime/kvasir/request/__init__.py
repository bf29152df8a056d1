"""Requests, as frontend and engine share them.

Reading order: request_core.py, params.py, constraint.py, adapter.py, tokens.py, hashing.py.
"""
