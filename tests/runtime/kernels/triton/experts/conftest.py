import importlib.util

# Builds of torch without CUDA come without triton; the tiles do not need it.
_NEED_TRITON = ["test_expert_blocks.py", "test_expert_gemm.py", "test_expert_sum.py"]
collect_ignore = [] if importlib.util.find_spec("triton") else _NEED_TRITON
