"""Rows of running requests, and a step's tensors gathered from them.

Reading order: request_table.py, inputs.py, sampling_inputs.py, device_counts.py,
prompt_logprobs.py.
"""
