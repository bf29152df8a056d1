"""Programs for those who change the code. Kvasir does not import them; run them as `python -m tools.NAME`.

prose.py finds the prose of a file, check_words.py compares it with word_list.toml, and code_figures.py (with
docstrings.py and import_cycles.py) counts what may not get worse.
"""
