"""The LoRA adapters of a frontend.

Reading order: served_adapters.py, adapter_file.py.
"""
