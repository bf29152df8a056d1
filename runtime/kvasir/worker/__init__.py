"""The worker: one model on one device. It runs forward passes and samples.

Reading order: step.py, worker.py, model_runner.py, stage_link.py, dummy.py, reference_check.py, device.py,
split_refusal.py, worker_calls.py, profiler.py; then batch/ (tensors of a step), launch/ (steps on the device)
and kv_memory/.
"""
