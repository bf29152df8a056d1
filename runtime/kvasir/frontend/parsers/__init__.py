"""Turns the text of a model into reasoning, content and tool calls.

Reading order: parsed.py (the events), formats/ (the descriptions), streaming/ (the state machine), grammar/ (of
tool calls), tool_choice.py, choosing.py, parsers.py (what the endpoints use).
"""

from kvasir.frontend.parsers.parsers import Parsers
from kvasir.frontend.parsers.tool_choice import ToolChoice, UnsupportedChoice

__all__ = ["Parsers", "ToolChoice", "UnsupportedChoice"]
