"""Shared memory between an engine and its worker processes.

Reading order: channel.py (how to use it), ring.py, worker_progress.py, segment.py.
"""
