"""API keys and shares; connections/ and bodies/ with their limits."""
