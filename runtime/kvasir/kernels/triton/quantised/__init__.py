"""Products with weights of 4 or 8 bits (layers/quantised/weight.py), dequantised in registers.

Reading order: weight_tiling.py, dequantise.py (values of a tile), weight_kernels.py, weight_product.py (launches).
"""
