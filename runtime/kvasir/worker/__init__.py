"""The worker: one model on one device. It runs forward passes and samples.

Reading order: step.py (input and output of a step), worker.py, model_runner.py, stage_link.py, cache_memory.py,
dummy.py, reference_check.py, device.py, split_refusal.py, huge_pages.py; then batch/ (the tensors of a step).
"""
