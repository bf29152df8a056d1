"""Spawn, probe, restart, stop and show processes. Begin with supervisor.py and keeper.py (one process)."""
