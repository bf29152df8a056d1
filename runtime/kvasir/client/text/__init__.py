"""From tokens to text.

Reading order: detokenizer.py (text of a token stream), stop_strings.py (where a stop string cuts), token_bytes.py,
logprob_lists.py.
"""
