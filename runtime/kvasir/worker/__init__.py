"""The worker: one model on one device.

Reading order: step.py, worker.py, model_runner.py, stage_link.py, dummy.py, reference_check.py, device.py,
split_refusal.py, worker_calls.py, profiler.py; then batch/, launch/ and kv_memory/.
"""
