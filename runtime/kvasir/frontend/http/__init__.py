"""API keys, client shares and the middleware of each request. connections/ has the sockets, bodies/ the limits of
bodies."""
