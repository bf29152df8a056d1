"""Writes the answers of one chat: the chunks of a stream, or the whole."""

from collections.abc import Sequence
from functools import cached_property

from msgspec import UNSET

from kvasir.client.async_llm import Delta
from kvasir.frontend.answer_parts import ChatLogprobs, CompletionTokensDetails, Usage
from kvasir.frontend.endpoints.chat.answer import (
    OBJECT,
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
)
from kvasir.frontend.endpoints.chat.parsed_message import ParsedMessage
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.output_plan import OutputPlan
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.generation import Choice, Generation
from kvasir.frontend.generation.sse import Chunks
from kvasir.frontend.service import Service


class ChatWriter:
    """Writes choices in the form that one request asks for, with a parser for each if the plan has one."""

    def __init__(self, service: Service, body: ChatRequest, plan: OutputPlan) -> None:
        self._plan = plan
        self._parses = plan.new_parser is not None
        self._messages: dict[int, ParsedMessage] = {}
        """Indexed by choice."""
        self._tool_format = service.parsers.tool_format
        self._shows_reasoning = body.include_reasoning
        self._echo = body.echoed
        self._token_ids = body.return_token_ids
        self._top = body.wanted_logprobs
        self._prompt_top = body.sampling.prompt_logprobs
        self._detokenizer, self._names_as_ids = service.llm.detokenizer, body.return_tokens_as_token_ids
        self._fingerprint = service.fingerprint
        self._continuous_usage = body.continuous_usage

    @cached_property
    def _names(self) -> logprobs.TokenNames:
        return logprobs.TokenNames(self._detokenizer, self._names_as_ids)

    def usage(self, usage: Usage) -> Usage:
        """Add the tokens of the reasoning so far, if the output is parsed."""
        if self._parses:
            tokens = sum(message.text.reasoning_tokens for message in self._messages.values())
            usage.completion_tokens_details = CompletionTokensDetails(tokens)
        return usage

    # ------------------------------------------------------------------------------------------ a stream

    def opening(self, index: int, generation: Generation, chunks: Chunks) -> bytes:
        """Return the chunk with the role, and one with the echoed message."""
        usage, role = self._usage_so_far(generation), ChatChunkChoice(index, ChatDelta("assistant", ""))
        if self._token_ids:
            prompt = generation.prompts[index].prompt_token_ids
            opening = chunks.choice_with(role, usage, prompt_token_ids=prompt.tolist())
        else:
            opening = chunks.choice(role, usage)
        if not self._echo:
            return opening
        return opening + chunks.choice(ChatChunkChoice(index, ChatDelta(content=self._echo)), usage)

    def texts(self, index: int, delta: Delta, generation: Generation, chunks: Chunks) -> bytes:
        """Return the next chunks: none while the text may be the beginning of a mark."""
        whole = self._chunk(index, delta)
        if not self._parses:
            return chunks.choice(whole, generation.usage if self._continuous_usage else None)
        choices = self._split(whole, delta)
        usage = self._usage_so_far(generation)
        return b"".join(chunks.choice(choice, usage) for choice in choices)

    def _usage_so_far(self, generation: Generation) -> Usage | None:
        return self.usage(generation.usage) if self._continuous_usage else None

    def _chunk(self, index: int, delta: Delta) -> ChatChunkChoice:
        text = ChatDelta(UNSET, delta.text or UNSET)
        scores = None if self._top is None else self._logprobs(delta, self._top)
        choice = ChatChunkChoice(index, text, scores, delta.finish_reason)
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        if self._token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def _split(self, whole: ChatChunkChoice, delta: Delta) -> list[ChatChunkChoice]:
        """Return a choice for each parsed delta: the first has all about the tokens, the last the finish reason."""
        message = self._message(whole.index)
        pieces = message.read(delta)
        if delta.finish_reason is not None:
            pieces.append(ChatDelta())
            whole.finish_reason = message.finish_reason(delta.finish_reason)
        elif not pieces:
            whole.delta = ChatDelta()
            reports = whole.logprobs is not None or whole.token_ids is not UNSET
            return [whole] if reports else []
        return _spread(whole, pieces)

    # ------------------------------------------------------------------------------------------ a whole answer

    def read(self, index: int, delta: Delta) -> None:
        """Parse the next output of a choice."""
        if self._parses:
            self._message(index).read(delta)

    def answer(self, id: str, created: int, model: str, choices: Sequence[Choice], usage: Usage) -> ChatAnswer:
        written = [self._choice(index, choice) for index, choice in enumerate(choices)]
        answer = ChatAnswer(id, OBJECT, created, model, written, self.usage(usage), self._fingerprint, None)
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
        scores = None if self._top is None else self._logprobs(choice, self._top)
        whole = ChatMessage("assistant", self._echo + choice.text)
        result = ChatChoice(index, whole, scores, choice.finish_reason, choice.stop_reason)
        if self._token_ids:
            result.token_ids = choice.token_ids
        if self._parses:
            message = self._message(index)
            assert choice.finish_reason is not None
            if not message.ended:  # beam search has no deltas
                message.read(Delta(choice.text, choice.token_ids, choice.finish_reason))
            result.message = message.whole(self._echo)
            result.finish_reason = message.finish_reason(choice.finish_reason)
        return result

    # ------------------------------------------------------------------------------------------ both

    def _message(self, index: int) -> ParsedMessage:
        if (message := self._messages.get(index)) is None:
            plan = self._plan
            message = ParsedMessage(plan.parsed_text(), plan.use, self._shows_reasoning, self._tool_format)
            self._messages[index] = message
        return message

    def _logprobs(self, tokens: Delta | Choice, top: int) -> ChatLogprobs | None:
        if tokens.logprobs is None:  # it has no tokens
            return None
        return logprobs.of_chat(self._names, tokens.token_ids, tokens.logprobs, top)


def _spread(whole: ChatChunkChoice, pieces: Sequence[ChatDelta]) -> list[ChatChunkChoice]:
    """Return a choice for each delta. `whole`: everything else."""
    if len(pieces) == 1:
        whole.delta = pieces[0]
        return [whole]
    index, last = whole.index, pieces[-1]
    return [
        ChatChunkChoice(index, pieces[0], whole.logprobs, token_ids=whole.token_ids),
        *(ChatChunkChoice(index, piece) for piece in pieces[1:-1]),
        ChatChunkChoice(index, last, None, whole.finish_reason, whole.stop_reason),
    ]
