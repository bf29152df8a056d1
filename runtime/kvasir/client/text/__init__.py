"""Output text. Reading order: detokenizer.py, stop_strings.py, token_bytes.py, logprob_lists.py."""
