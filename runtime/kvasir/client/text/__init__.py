"""Output text: detokenization, stop strings and the bytes of tokens.

Reading order: detokenizer.py (text of a token stream), stop_strings.py (cuts the text at a stop string),
token_bytes.py, logprob_lists.py.
"""
