"""What a machine has: its processors, memory and GPUs (device_facts.py), and GPUs by name (gpu_types.py)."""
