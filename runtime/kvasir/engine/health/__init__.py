"""What an engine reports about itself.

Reading order: step_trace.py, step_limit.py, engine_status.py, step_watchdog.py, black_box.py.
"""
