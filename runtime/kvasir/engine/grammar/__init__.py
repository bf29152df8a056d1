"""Grammars of structured output: compiled safely, and enforced token by token.

Reading order: vocabulary.py (the model's tokens as llguidance reads them), compiling.py and llguidance_errors.py (a
grammar to a matcher), trial_process.py and trials.py (the same in a child process first, with limits on memory and
time), grammars.py and compiled_grammars.py (compilations of requests, cached and shared),
grammar_gate.py (admits a request when its grammar is ready), output_guide.py and guide_errors.py (which tokens may
follow in one request's output).
`kvasir.grammar_bounds` holds the limits that a grammar is checked against before all that.
"""
