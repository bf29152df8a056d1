"""The KV cache's bookkeeping: blocks, their LRU queue and their content hashes. No tensors here.

Reading order: block_pool.py (allocate and evict), prefix_cache.py (find a block by its hash), group_rule.py (what
full attention and sliding windows need), block_table.py, held_blocks.py (blocks of hand-overs), kv_manager.py
(the blocks of requests).
"""
