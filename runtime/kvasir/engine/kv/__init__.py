"""The KV cache's bookkeeping: blocks, their LRU queue and their content hashes. No tensors here.

Reading order: block_pool.py (allocate and evict), prefix_cache.py (find a block by its hash), request_blocks.py
(the blocks of one request).
"""
