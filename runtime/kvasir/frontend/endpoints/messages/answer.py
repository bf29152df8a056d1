"""The answer of POST /v1/messages: whole, or before its content."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from kvasir.client.async_llm import Delta
from kvasir.frontend.answer_parts import Usage
from kvasir.frontend.endpoints.messages.answer_blocks import ContentBlock
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.link.protocol import FinishReason

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageStop(Struct):
    stop_reason: StopReason | None
    stop_sequence: str | None = None


class ThinkingTokensDetails(Struct):
    thinking_tokens: int


class MessageUsage(Struct):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokensDetails | UnsetType = UNSET


class MessageAnswer(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Sequence[ContentBlock]
    # null in the first event of a stream.
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageObject:
    def __init__(self, id: str, model: str, text: ParsedText, bounded_by_context: bool) -> None:
        """`bounded_by_context`: the context is smaller than max_tokens."""
        self._id = id
        self._model = model
        self._text = text
        self._length: StopReason = "model_context_window_exceeded" if bounded_by_context else "max_tokens"

    def begin(self, usage: Usage) -> MessageAnswer:
        result = self._message([], MessageStop(None), usage)
        result.usage.output_tokens = 0
        return result

    def finish(self, content: Sequence[ContentBlock], last: Delta, usage: Usage) -> MessageAnswer:
        return self._message(content, self.stop(last), usage)

    def stop(self, last: Delta) -> MessageStop:
        if last.finish_reason is FinishReason.LENGTH:
            return MessageStop(self._length)
        if self._text.ends_with_calls:
            return MessageStop("tool_use")
        if isinstance(last.stop_reason, str):
            return MessageStop("stop_sequence", last.stop_reason)
        return MessageStop("end_turn")

    def usage(self, usage: Usage) -> MessageUsage:
        # This API counts cached tokens apart from input_tokens.
        cached, thinking = usage.prompt_tokens_details.cached_tokens, self._text.reasoning_tokens
        details = ThinkingTokensDetails(thinking) if thinking else UNSET
        return MessageUsage(usage.prompt_tokens - cached, 0, cached, usage.completion_tokens, details)

    def _message(self, content: Sequence[ContentBlock], stop: MessageStop, usage: Usage) -> MessageAnswer:
        return MessageAnswer(
            self._id,
            "message",
            "assistant",
            self._model,
            content,
            stop.stop_reason,
            stop.stop_sequence,
            self.usage(usage),
        )
