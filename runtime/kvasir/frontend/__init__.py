"""The API server: OpenAI's HTTP API over kvasir.client.

Reading order: server.py (the process), service.py, app.py, middleware.py, routing.py; then http/ (connections,
keys, limits), request_bodies/, endpoints/, generation/, parsers/, telemetry/ and page/ (files).
"""
