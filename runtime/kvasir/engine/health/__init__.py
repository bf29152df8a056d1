"""What an engine reports about itself.

Reading order: step_trace.py (timings of a step), step_limit.py (a step that takes too long), engine_status.py
(phase and probes), step_watchdog.py (a step that hangs), engine_collector.py (Prometheus metrics).
"""
