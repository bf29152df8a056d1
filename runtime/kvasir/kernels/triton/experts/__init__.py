"""The matrix products of a mixture of experts (docs/design/triton-experts.md).

Reading order: expert_tiling.py (sizes, without triton), expert_blocks.py, expert_gemm.py, expert_sum.py (the
kernels), expert_kernels.py (launches).
"""
