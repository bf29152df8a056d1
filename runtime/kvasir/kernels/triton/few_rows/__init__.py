"""Products of a few rows with large weights, each fused with the operations around it.

Small kernels between products take longer to start than to compute.
Reading order: ../row_tiling.py, row_product.py (the kernel), row_products.py (launches).
"""
