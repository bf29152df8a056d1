"""The page for browsers at /: page_files.py, then route.py. assets/ has its scripts and styles as they are sent."""
