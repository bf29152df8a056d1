"""The server's own matters: listener, connections, limits, keys, bodies, and what surrounds each request."""
