"""Request bodies within limits. Reading order: upload_queue.py, body.py, body_memory.py, json_cost.py."""
