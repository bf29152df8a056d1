"""One module per family of models; models/registry.py lists them.

transformers_lm.py computes any other architecture with the code of the transformers library.
"""
