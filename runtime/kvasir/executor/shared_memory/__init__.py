"""Shared memory between an engine and its worker processes: frames of bytes.

Reading order: ring.py, segment.py. Nothing here depends on the content of a frame.
"""
