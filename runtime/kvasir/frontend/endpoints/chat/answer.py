"""The answers of chats without a parser: messages, and the chunks of a stream."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.answer_parts import ChatLogprobs, PromptLogprobs, Usage
from kvasir.frontend.generation.generation import Choice, Generation
from kvasir.frontend.generation.sse import Chunks
from kvasir.frontend.service import Service

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


class AnswerWriter:
    """Writes choices in the form that one request asks for."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.echo = body.echoed
        self._token_ids = body.return_token_ids
        self._top = body.wanted_logprobs
        self._prompt_top = body.sampling.prompt_logprobs
        self._names = logprobs.TokenNames(service.llm.detokenizer, body.return_tokens_as_token_ids)
        self._fingerprint = service.fingerprint
        self.continuous_usage = body.continuous_usage

    def opening(self, index: int, generation: Generation, chunks: Chunks, usage: Usage | None) -> bytes:
        """Return the chunk with the role, and one with the echoed message."""
        begun = self._role(index, generation, chunks, usage)
        if not self.echo:
            return begun
        return begun + chunks.choice(ChatChunkChoice(index, ChatDelta(content=self.echo)), usage)

    def _role(self, index: int, generation: Generation, chunks: Chunks, usage: Usage | None) -> bytes:
        choice = ChatChunkChoice(index, ChatDelta("assistant", ""))
        if self._token_ids:
            prompt = generation.prompts[index].prompt_token_ids
            return chunks.choice_with(choice, usage, prompt_token_ids=prompt.tolist())
        return chunks.choice(choice, usage)

    def delta(self, index: int, delta: Delta) -> ChatChunkChoice:
        text = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        scores = None if self._top is None else self._logprobs(delta, self._top)
        choice = ChatChunkChoice(index, text, scores, delta.finish_reason)
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        if self._token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def answer(self, id: str, created: int, model: str, choices: Sequence[Choice], usage: Usage) -> ChatAnswer:
        written = [self._choice(index, choice) for index, choice in enumerate(choices)]
        answer = ChatAnswer(id, OBJECT, created, model, written, usage, self._fingerprint, None)
        prompt, scores = choices[0].prompted.prompt_token_ids, choices[0].prompt_logprobs
        if self._token_ids:
            answer.prompt_token_ids = prompt.tolist()
        if self._prompt_top is not None and scores is not None:
            answer.prompt_logprobs = logprobs.of_prompt(self._names, prompt, scores, self._prompt_top)
        return answer

    def entries(self, choices: Sequence[Choice]) -> int:
        """Return the number of log probabilities in an answer."""
        of_output = 0 if self._top is None else (self._top + 1) * sum(len(choice.token_ids) for choice in choices)
        prompt = choices[0].prompted.prompt_token_ids
        return of_output + (0 if self._prompt_top is None else (self._prompt_top + 1) * len(prompt))

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        message = ChatMessage("assistant", self.echo + choice.text)
        scores = None if self._top is None else self._logprobs(choice, self._top)
        result = ChatChoice(index, message, scores, choice.finish_reason, choice.stop_reason)
        if self._token_ids:
            result.token_ids = choice.token_ids
        return result

    def _logprobs(self, tokens: Delta | Choice, top: int) -> ChatLogprobs | None:
        if tokens.logprobs is None:  # it has no tokens
            return None
        return logprobs.of_chat(self._names, tokens.token_ids, tokens.logprobs, top)
