"""Grammars of structured output: compiled safely, and enforced token by token.

Reading order: vocabulary.py, compiling.py, trial_messages.py, trial_process.py, trials.py,
grammars.py, grammar_gate.py, output_guide.py.
"""
