"""The memory of the KV cache: size (cache_memory.py), pages on CPU (huge_pages.py), bytes of blocks
(block_bytes.py).
"""
