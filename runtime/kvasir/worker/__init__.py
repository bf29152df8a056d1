"""The worker: one model on one device. It runs forward passes and samples.

Reading order: step.py (input and output of a step), worker.py, model_runner.py, stage_link.py, dummy.py,
reference_check.py, device.py, split_refusal.py, worker_calls.py, profiler.py; then batch/ (the tensors of a step),
launch/ (steps that a device computes meanwhile) and kv_memory/.
"""
