"""Weights of 4 or 8 bits and products with them, for all formats of checkpoints.

Reading order: weight.py, product.py, method.py, packings, choose.py.
"""
