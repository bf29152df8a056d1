"""Running processes: spawn, probe, restart, stop, show.

Reading order: supervisor.py, keeper.py (one process), child.py, prober.py, process_spec.py, launch.py, screen.py.
"""
