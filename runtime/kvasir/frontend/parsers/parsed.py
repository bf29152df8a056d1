"""What the output of a model consists of: the events of an OutputParser, and the tools of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a request offers to the model."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """A JSON Schema of its arguments. Empty: it has none."""
    strict: bool = False
    """Whether the arguments must match `parameters` in every case."""


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """Text of the reasoning, without its marks."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool call whose name is complete. Its arguments follow in CallArguments."""

    index: int
    """Counts the calls of an output from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of the arguments of a call. All parts together are a JSON object, unless the output is cut."""

    index: int
    text: str


ParsedEvent: TypeAlias = ReasoningText | ContentText | CallBegun | CallArguments


class OutputParser(Protocol):
    """Parses the output of one choice. The events do not depend on how the text is split into pieces, except that
    neighbouring texts of one kind may come in more or fewer parts."""

    reasoning_tokens: int
    """Tokens of the reasoning so far, its marks included."""

    def push(self, text: str, token_ids: Sequence[int]) -> list[ParsedEvent]:
        """Return the events that the next text completes. It includes the text of special tokens.

        `token_ids`: the tokens since the last call, for `reasoning_tokens`.
        """
        ...

    @property
    def is_torn(self) -> bool:
        """Whether the last call broke after its beginning was in the events. Its arguments are JSON even so."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[ParsedEvent]:
        """Return the remaining events at the end of the output. Text that only looked like a call is content.

        `is_cut`: the output was cut at the limit of its length. A call that it cuts keeps the arguments so far.
        """
        ...
