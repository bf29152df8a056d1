"""Rows of running requests, and a step's tensors gathered from them.

Reading order: request_table.py, inputs.py, gather_plan.py and tile_plan.py (attention), sampling_inputs.py,
prompt_logprobs.py.
"""
