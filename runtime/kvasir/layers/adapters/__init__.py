"""Products of LoRA adapters, added to those of linear layers.

Reading order: adapted_method.py, slot_matrices.py, adapter_matrices.py.
"""
