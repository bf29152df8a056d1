"""LoRA adapters in a worker: read in pieces between steps, and put into the slots of layers.

Reading order: adapter_store.py, adapted_layers.py, adapter_reading.py.
"""
