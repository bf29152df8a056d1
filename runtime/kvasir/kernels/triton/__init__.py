"""Attention over the paged KV cache by Triton kernels, for GPUs.

These kernels have not run on a device yet: they are proven under Triton's interpreter and compiled ahead of time
(docs/design/triton-kernels.md).

Reading order: work_list.py (the programs of a step, in numpy), tiling.py (the sizes that launches and compilation
ahead of time share), kv_write.py, paged_attention.py and segment_merge.py (the kernels), paged_kernels.py (launches
them). Only the last four import triton.
"""
