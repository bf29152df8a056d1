"""Are the Triton kernels right? Each is compared with its definition in float64, or with plain torch on the CPU.

Reading order: comparison.py, interpreted.py (a smoke test without a GPU), paged_step.py, attention.py, windows.py,
fused.py, few_rows.py, sampling.py, experts.py, models.py (whole models: tokens of the GPU and of the CPU).
"""
