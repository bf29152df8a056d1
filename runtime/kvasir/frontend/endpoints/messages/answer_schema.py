"""The answers below /v1/messages as models, for the description of the API; answer.py and errors.py write them."""

from typing import Any, Final, Literal

from pydantic import BaseModel

from kvasir.frontend.endpoints.answers import Responses, errors


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    """All tokens of the prompt are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class MessageAnswer(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class CountTokensAnswer(BaseModel):
    input_tokens: int


class MessageErrorObject(BaseModel):
    type: str
    message: str


class MessageErrorAnswer(BaseModel):
    """Anthropic's error object; the same in an event of a stream that fails."""

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str


def _errors() -> Responses:
    return {status: {**told, "model": MessageErrorAnswer} for status, told in errors(404, body=True).items()}


ERRORS: Final = _errors()
