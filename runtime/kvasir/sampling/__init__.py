"""Choosing tokens from logits.

Reading order: sampler.py, logits.py, penalties.py, bad_words.py, logit_rules.py, random.py, token_logprobs.py.
"""
