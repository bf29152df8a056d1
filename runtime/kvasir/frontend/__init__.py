"""The API server: OpenAI's HTTP API over kvasir.client; server.py is where it starts."""
