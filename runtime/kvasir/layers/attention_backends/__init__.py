"""Attention backends: each plans a step for a KV group and computes attention by that plan.

Reading order: choose_backend.py, tile_backend.py, tiles.py, prompt_choice.py (CPU), triton_paged.py,
triton_planner.py (GPU), gather.py, gather_planner.py (plain torch).
"""
