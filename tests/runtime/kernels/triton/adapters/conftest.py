import importlib.util

# Builds of torch without CUDA come without triton; the tiles do not need it.
_NEED_TRITON = ["test_adapter_products.py"]
collect_ignore = [] if importlib.util.find_spec("triton") else _NEED_TRITON
