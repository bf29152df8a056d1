"""Settings of processes.

Reading order: settings.py and frontend_settings.py (the settings), options.py and parsers.py (how they are read),
resolve.py (how `auto` becomes a value).
"""
