"""Triton kernels for GPUs: attention over the paged KV cache, the operations between a layer's matrix products, the
products of a mixture of experts (experts/) and of a few rows (few_rows/), and the choice of tokens (sampling/).

Reading order: device_support.py (which devices can run them), device_tiles.py (sizes by device). Attention:
work_list.py (the programs of a step, in numpy), tiling.py (the sizes that launches and compilation ahead of time
share), kv_write.py, paged_attention.py and segment_merge.py (the kernels), paged_kernels.py (launches them). The
fused operations: fused_tiling.py (their sizes), rms_norm.py, gated_activation.py and rotary.py (the kernels),
fused_kernels.py (launches them). Only the kernels and the modules that launch them import triton.
"""
