"""Sampling by Triton kernels; the references in plain torch are in `kvasir.sampling`.

Reading order: sizes.py, float_order.py, race.py, filters.py, sampling_kernels.py (launches), logit_changes.py,
logit_kernels.py (launches).
"""
