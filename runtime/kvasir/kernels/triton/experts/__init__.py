"""The matrix products of a mixture of experts, by Triton kernels (docs/design/triton-experts.md).

Reading order: expert_tiling.py (the sizes that launches and compilation ahead of time share), expert_blocks.py,
expert_gemm.py and expert_sum.py (the kernels), expert_kernels.py (launches them). Only the last four import triton.
"""
