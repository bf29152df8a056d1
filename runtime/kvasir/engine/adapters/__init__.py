"""LoRA adapters in an engine: checked in threads, loaded between steps, and shared out over the slots of a step.

Reading order: adapter_gate.py, adapter_memory.py, adapter_checks.py.
"""
