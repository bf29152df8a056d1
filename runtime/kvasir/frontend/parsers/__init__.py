"""Turns the text of a model into reasoning, content and tool calls.

Reading order: parsed.py (events), formats/ (data), streaming/ (the state machine), format_plugins.py,
grammar/, parsers.py.
"""

from kvasir.frontend.parsers.parsed import ToolChoice, UnsupportedChoice
from kvasir.frontend.parsers.parsers import Parsers

__all__ = ["Parsers", "ToolChoice", "UnsupportedChoice"]
