"""Limits on the memory and the cost of request bodies: upload_queue.py, body_memory.py, json_cost.py."""
