"""Products of LoRA adapters, added to those of linear layers.

Reading order: adapter_matrices.py, adapted_method.py.
"""
