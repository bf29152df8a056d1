"""Chooses tokens by Triton kernels; the references in plain torch are in `kvasir.sampling`.

Reading order: sizes.py (without triton), float_order.py, race.py (draws), filters.py (min-p, top-k and top-p),
sampling_kernels.py (launches), logit_changes.py (masks, bias and penalties), logit_kernels.py (launches).
"""
