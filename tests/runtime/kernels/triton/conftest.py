import importlib.util

# Builds of torch without CUDA come without triton; the work lists do not need it.
collect_ignore = [] if importlib.util.find_spec("triton") else ["test_kv_write.py", "test_paged_attention.py"]
