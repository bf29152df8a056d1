"""The events of an OutputParser, and the tools of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)  # JSON Schema of the arguments. Empty: it has none.
    strict: bool = False  # the arguments of each call match `parameters`


@dataclass(frozen=True, slots=True)
class ReasoningText:
    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The beginning of a tool call."""

    index: int  # counts the calls of an output from 0
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of the arguments of a call. Together they are a JSON object, unless the output is cut."""

    index: int
    text: str


ParsedEvent: TypeAlias = ReasoningText | ContentText | CallBegun | CallArguments


class OutputParser(Protocol):
    """Parses one output. However it is split into pieces, the joined events are the same."""

    reasoning_tokens: int  # so far, including the marks

    def push(self, text: str, token_ids: Sequence[int]) -> list[ParsedEvent]:
        """Return the events that the next text, with special tokens, completes. `token_ids`: its tokens."""
        ...

    @property
    def is_torn(self) -> bool:
        """Whether the last call broke after it had begun in the events."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[ParsedEvent]:
        """Return the remaining events. `is_cut`: at the limit of the length, where a call may stay incomplete."""
        ...
