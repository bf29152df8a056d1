"""Settings of processes: settings.py (the fields), options.py (reads them), resolve.py (replaces `auto`)."""
