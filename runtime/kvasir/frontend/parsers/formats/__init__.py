"""The descriptions of formats: data that the state machine and the grammars read.

Reading order: descriptions.py (the parts of a description), tool_formats.py and reasoning_formats.py (those that
come with Kvasir), plugins.py (those of other packages).
"""
