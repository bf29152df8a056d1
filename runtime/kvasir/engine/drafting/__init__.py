"""Drafters guess tokens that follow a request's known ones; a step verifies them (docs/design/step.md).

Reading order: adaptive_drafter.py, ngram_guesses.py, ngram_index.py, suffix_guesses.py,
past_outputs.py, make_drafter.py.
"""
