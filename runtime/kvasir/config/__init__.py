"""Settings of processes: what they are (settings.py), how they are read (options.py), how `auto` becomes a value
(resolve.py)."""
