"""The bookkeeping of the KV cache: blocks, their LRU order and their content hashes; no tensors.

Reading order: block_pool.py, prefix_cache.py, group_rule.py, kv_manager.py.
"""
