"""How fast are the kernels and whole models, next to the measured rates of the device?

Reading order: ceilings.py, operations.py, attention.py (baselines.py: torch's own attention), decode.py
(breakdown.py: time by kernel), prefill.py and workload.py.
tune.py chooses the tiles of the kernels (tile_candidates.py, tile_compilation.py).
"""
