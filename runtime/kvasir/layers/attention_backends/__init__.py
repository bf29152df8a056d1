"""Attention backends: each plans a step for a KV group and computes attention by that plan.

Reading order: choose_backend.py, tiles.py (kernel for CPUs), triton_paged.py and triton_planner.py (kernels for
GPUs), gather.py and gather_planner.py (plain torch, any device).
"""
