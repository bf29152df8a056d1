"""The server's own matters: keys, shares, and what surrounds each request; connections/ (with the listener and TLS)
and bodies/ (of requests)."""
