"""GET /load, POST /reset_prefix_cache."""
