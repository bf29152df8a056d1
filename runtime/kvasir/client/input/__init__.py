"""From a request's fields to prompt tokens and sampling parameters.

Reading order: input_processor.py, chat_templates.py, sampling.py; grammar_source.py (from a constraint to a
grammar) with schemas.py, structural_tags.py and lark_literals.py.
"""
