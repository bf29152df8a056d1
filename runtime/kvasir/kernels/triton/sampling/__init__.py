"""Chooses tokens by Triton kernels, for GPUs; the references in plain torch are in `kvasir.sampling`.

These kernels have not run on a device yet: they are proven under Triton's interpreter and compiled ahead of time
(docs/design/triton-sampling.md).

Reading order: sizes.py, float_order.py, race.py (draws), filters.py (min-p, top-k and top-p), sampling_kernels.py
(launches both), logit_changes.py (masks, bias and penalties), logit_kernels.py (launches them). All but sizes.py
import triton.
"""
