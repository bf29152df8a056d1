"""Bodies of requests: when a request with one starts (upload_queue.py), and how it is read within limits (body.py,
body_memory.py, json_cost.py)."""
