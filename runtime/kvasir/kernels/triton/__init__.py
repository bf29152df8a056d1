"""Triton kernels for GPUs. Only the kernels and the modules that launch them import triton.

Reading order: device_support.py, device_tiles.py, row_tiling.py. Attention: work_list.py, tiling.py, kv_write.py,
paged_attention.py, segment_merge.py, paged_kernels.py (launches). Fused operations: fused_tiling.py, rms_norm.py,
gated_activation.py, rotary.py, fused_kernels.py (launches). Then experts/, few_rows/ and sampling/.
"""
