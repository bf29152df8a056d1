"""Products of a few rows with large weights, each with the operations around it in the same launch.

The product of one row reads each weight once and computes little: its time is that of the memory. Between products,
small kernels take longer to start than to compute, so the product takes them over: the norm before it, the
activation of a gate or the addition to the residual stream after it.

Reading order: row_tiling.py (the sizes that launches and compilation ahead of time share), row_product.py (the
kernel), row_products.py (the launches).
"""
