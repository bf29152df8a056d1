"""Tensors of checkpoints by our names, one module for each format of files; checkpoint.py is their interface."""
