"""The events of a parsed output, and the tools of a request."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias


class ToolChoice(Enum):
    """`tool_choice` of a request. A named function is REQUIRED with that tool alone."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class UnsupportedChoice(ValueError):
    """The model's formats cannot enforce the choice of tools or reasoning."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)  # JSON Schema of the arguments; empty for none
    strict: bool = False  # arguments match `parameters`


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    index: int  # counted from 0 in an output
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of a call's arguments, which join to a JSON object unless the output is cut."""

    index: int
    text: str


ParsedEvent: TypeAlias = ReasoningText | ContentText | CallBegun | CallArguments
