"""Products of LoRA adapters, in the blocks of rows of the experts' kernels: a slot is an expert.

Reading order: adapter_tiling.py, adapter_gemm.py, adapter_products.py.
"""
