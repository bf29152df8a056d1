"""The content blocks of an answer: thinking, text and tool uses, in the order of the model's text."""

from typing import Any, Final, Literal

from msgspec import Struct
from pydantic_core import from_json

from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText

BlockType = Literal["thinking", "text", "tool_use"]

# The API signs thinking, and clients return it. Nothing here is signed or checked.
SIGNATURE: Final = "kvasir"


class ThinkingBlock(Struct, tag="thinking"):
    thinking: str
    signature: str


class TextBlock(Struct, tag="text"):
    text: str
    citations: None


class ToolUseBlock(Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = ThinkingBlock | TextBlock | ToolUseBlock


class AnswerBlock:
    """One block; its text is the thinking, the text, or a tool's input as JSON."""

    def __init__(self, type: BlockType, index: int, id: str = "", name: str = "") -> None:
        self.type = type
        self.index = index
        self._id = id
        self._name = name
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)

    def begin(self) -> ContentBlock:
        return self._block("", "")

    def end(self) -> ContentBlock:
        return self._block("".join(self._texts), SIGNATURE)

    def _block(self, text: str, signature: str) -> ContentBlock:
        if self.type == "thinking":
            return ThinkingBlock(text, signature)
        if self.type == "text":
            return TextBlock(text, None)
        return ToolUseBlock(self._id, self._name, _input(text))


class AnswerBlocks:
    def __init__(self, tool_format: str | None, *, hides_thinking: bool) -> None:
        self._tool_format = tool_format
        self._hides_thinking = hides_thinking
        self._blocks: list[AnswerBlock] = []

    def take(self, event: ParsedEvent) -> tuple[AnswerBlock, str]:
        """Add an event to its block, which may be new. Return the block and its new text."""
        match event:
            case CallBegun():
                return self._new("tool_use", new_call_id(self._tool_format, "toolu_"), event.name), ""
            case CallArguments():
                block = self._of("tool_use")
            case ReasoningText():
                block = self._of("thinking")
            case ContentText():
                block = self._of("text")
        text = "" if self._hides_thinking and block.type == "thinking" else event.text
        block.add(text)
        return block, text

    def at_least_one(self) -> AnswerBlock:
        """Return the last block, or a new empty text."""
        return self._blocks[-1] if self._blocks else self._new("text")

    def end(self) -> list[ContentBlock]:
        return [block.end() for block in self._blocks]

    def _of(self, type: BlockType) -> AnswerBlock:
        last = self._blocks[-1] if self._blocks else None
        return last if last is not None and last.type == type else self._new(type)

    def _new(self, type: BlockType, id: str = "", name: str = "") -> AnswerBlock:
        block = AnswerBlock(type, len(self._blocks), id, name)
        self._blocks.append(block)
        return block


def _input(text: str) -> dict[str, Any]:
    # JSON that is cut off gives what clients read in a stream.
    try:
        value = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
