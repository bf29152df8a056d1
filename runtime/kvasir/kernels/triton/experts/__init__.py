"""The matrix products of a mixture of experts (docs/design/triton-experts.md).

Reading order: expert_tiling.py, expert_blocks.py, expert_gemm.py, expert_sum.py, expert_kernels.py (launches).
"""
