"""The events of an OutputParser, and the tools of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias


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


class OutputParser(Protocol):
    """Parses one output. Every split into pieces gives the same joined events."""

    reasoning_tokens: int  # with the marks

    def push(self, text: str, token_ids: Sequence[int]) -> list[ParsedEvent]:
        """Return the events that the next text, with special tokens, completes. `token_ids`: its tokens."""
        ...

    @property
    def is_torn(self) -> bool:
        """Return whether the last call broke after its beginning in the events."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[ParsedEvent]:
        """Return the remaining events. `is_cut`: by the length limit, where a call may stay incomplete."""
        ...
