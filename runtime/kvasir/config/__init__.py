"""Settings of processes.

Reading order: settings.py, frontend_settings.py and tls_settings.py (the settings), options.py and parsers.py (how
they are read), resolve.py (how `auto` becomes a value).
"""
