"""The answers of chats, as structs: whole, and the choices of a stream's chunks."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kvasir.frontend.answer_parts import ChatLogprobs, PromptLogprobs, Usage

OBJECT: Final = "chat.completion"

ReasonToFinish = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length", "tool_calls", "function_call"]})]


class CalledFunction(Struct):
    name: str
    # JSON of an object; cut off if the answer is.
    arguments: str


class ChatToolCall(Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Struct):
    role: Literal["assistant"]
    # null if there are only tool calls, or only reasoning.
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    # vLLM's newer name of reasoning_content.
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    # Instead of tool_calls, if the request has `functions`.
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ReasonToFinish | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    kv_transfer_params: None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
