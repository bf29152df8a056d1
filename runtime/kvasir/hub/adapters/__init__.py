"""LoRA adapters in PEFT's format, read without torch.

Reading order: adapter_info.py, adapter_config.py, adapter_tensors.py.
"""
