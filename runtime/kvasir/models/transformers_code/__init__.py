"""Models that the code of transformers computes, with our attention: transformers_lm.py loads one."""
