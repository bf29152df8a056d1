"""One module per family of models. transformers_lm.py computes any other architecture."""
