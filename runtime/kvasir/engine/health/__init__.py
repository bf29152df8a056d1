"""What an engine reports about itself.

Reading order: step_trace.py, engine_status.py, step_watchdog.py, black_box.py.
"""
