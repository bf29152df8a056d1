"""Programs for development, run as `python -m tools.NAME`. Kvasir does not import them.

prose.py finds the prose of a file, check_words.py compares it with word_list.toml, and code_figures.py (with
docstrings.py and import_cycles.py) counts what may not get worse.
"""
