"""Settings (settings.py), how they are read (options.py) and how `auto` becomes a value (resolve.py)."""
