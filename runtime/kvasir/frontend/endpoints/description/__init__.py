"""GET /openapi.json and /docs."""
