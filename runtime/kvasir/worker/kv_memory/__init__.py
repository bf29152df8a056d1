"""The memory of the KV cache.

Reading order: cache_memory.py, huge_pages.py, block_bytes.py.
"""
