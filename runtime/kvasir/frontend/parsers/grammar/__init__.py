"""Grammars, in llguidance's dialect of Lark, that force or guard tool calls. Without llguidance: text only.

Reading order: lark_text.py (the text of a grammar), call_rules.py (one call), parameter_rules.py (one in XML or
Python), section_rules.py (sections of calls, and text around them), harmony_rules.py, choice_grammar.py (the output
behind its reasoning), output_constraint.py (the whole output).
"""
