"""Requests that are wrong in every way a client could get them wrong, as bytes for a socket; used by fuzz.py.

Reading order: valid.py (their parts), bodies.py, protocol.py and excess.py (the kinds), cases.py (which one it is).
"""
