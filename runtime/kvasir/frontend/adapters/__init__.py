"""The LoRA adapters of a frontend.

Reading order: served_adapters.py, listed_adapters.py.
"""
