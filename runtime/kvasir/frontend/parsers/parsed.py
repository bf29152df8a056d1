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
    """Parses the output of one choice. Apart from how texts of one kind are divided, the events are the same for
    every split of the output into pieces."""

    reasoning_tokens: int  # so far, including the marks

    def push(self, text: str, token_ids: Sequence[int]) -> list[ParsedEvent]:
        """Return the events that the next text completes.

        `text` includes special tokens. `token_ids`: the tokens since the last call, for `reasoning_tokens`.
        """
        ...

    @property
    def is_torn(self) -> bool:
        """Whether the last call broke after it had begun in the events. Its arguments were completed to JSON."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[ParsedEvent]:
        """Return the remaining events at the end of the output.

        `is_cut`: at the limit of its length. A call that is cut there keeps its arguments so far.
        """
        ...
