"""Turns the text of a model into reasoning, content and tool calls.

Reading order: parsed.py (events), formats/ (data), streaming/ (the state machine), dry_run.py, format_plugins.py,
grammar/, parsers.py.
"""

from kvasir.frontend.parsers.parsers import Parsers
from kvasir.frontend.parsers.tool_choice import ToolChoice, UnsupportedChoice

__all__ = ["Parsers", "ToolChoice", "UnsupportedChoice"]
