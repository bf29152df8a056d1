"""The memory of the KV cache: its size (cache_memory.py), its pages on a CPU (huge_pages.py), and the bytes of its
blocks for other engines (block_bytes.py)."""
