"""Settings (settings.py), how they are read (options.py, parsers.py), how `auto` becomes a value (resolve.py)."""
