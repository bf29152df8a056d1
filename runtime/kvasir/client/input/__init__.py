"""Turns the fields of a request into prompt tokens, sampling parameters and grammars.

Reading order: input_processor.py, chat_templates.py, sampling.py, grammar_source.py.
"""
