import importlib.util

# Builds of torch without CUDA come without triton.
collect_ignore = [] if importlib.util.find_spec("triton") else ["test_triton_moe.py", "test_triton_paged.py"]
