"""Writes grammars that force or guard tool calls, in llguidance's dialect of Lark.

Reading order: lark_text.py, parameter_rules.py, section_rules.py, harmony_rules.py,
choice_grammar.py, output_constraint.py.
"""
