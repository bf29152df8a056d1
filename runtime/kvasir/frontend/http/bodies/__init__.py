"""Limits on the memory and the cost of request bodies: body_memory.py, json_cost.py."""
