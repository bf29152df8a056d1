"""Chooses tokens by Triton kernels, for GPUs; the references in plain torch are in `kvasir.sampling`.

Reading order: sizes.py, float_order.py, race.py (draws), filters.py (min-p, top-k and top-p), sampling_kernels.py
(launches both), logit_changes.py (masks, bias and penalties), logit_kernels.py (launches them). All but sizes.py
import triton.
"""
