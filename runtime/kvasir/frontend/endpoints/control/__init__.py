"""GET /load, POST /reset_prefix_cache, POST /start_profile, POST /stop_profile."""
