"""What clients send: one msgspec struct per request body, and how bad bodies are refused (fields.py)."""
