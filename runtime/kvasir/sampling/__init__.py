"""Choosing tokens from logits.

Reading order: sampler.py (triton_sampler.py on GPUs), logits.py, penalties.py, logit_rules.py,
random.py, token_logprobs.py.
"""
