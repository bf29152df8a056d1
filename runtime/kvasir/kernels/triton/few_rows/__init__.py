"""Products of a few rows with large weights, each with the operations around it in the same launch.

The product of one row reads each weight once, in the time of the memory. Small kernels between products take longer
to start than to compute. Reading order: row_tiling.py, row_product.py (the kernel), row_products.py (launches).
"""
