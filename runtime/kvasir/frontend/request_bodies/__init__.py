"""The bodies of requests: read (body.py), and checked by a model (request_body.py, field_errors.py)."""
