"""API keys, shares and middleware; connections/ and bodies/ with their limits."""
