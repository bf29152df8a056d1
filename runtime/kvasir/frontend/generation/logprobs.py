"""Log probabilities in OpenAI's forms for chats and completions, and vLLM's for prompts.

A token is the text of its bytes, with \\xNN for bytes of incomplete characters, as in OpenAI's API.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.client.text.detokenizer import Detokenizer, TextStream
from kvasir.frontend.answer_parts import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingFields

# OpenAI's value for log(0), also used for NaN, which JSON lacks. For NaN, `max(LEAST, value)` returns its first
# argument.
LEAST: Final = -9999.0
INLINE_ENTRIES: Final = 4096  # written on the event loop, in milliseconds
MAX_IN_ANSWER: Final = 1_000_000  # about 300 bytes each, until the answer is sent

Result = TypeVar("Result")


class ScoringBody(Protocol):
    stream: bool

    @property
    def sampling(self) -> SamplingFields: ...


def check_size(body: ScoringBody, prompts: Sequence[Prompted], choices: int, bounded: bool) -> None:
    """Raise InvalidRequest if the answer may have too many log probabilities.

    `choices`: per prompt. `bounded`: by max_tokens, not only by the context.
    """
    # A stream keeps no output, and an unbounded text usually ends long before the context.
    of_prompts = of_output = 0
    for prompted in prompts:
        params = prompted.params
        if params.prompt_logprobs is not None:
            of_prompts += len(prompted.prompt_token_ids) * (params.prompt_logprobs + 1)
        if params.logprobs is not None and not body.stream and (bounded or len(prompts) * choices > 1):
            of_output += choices * params.max_tokens * (params.logprobs + 1)
    if of_prompts + of_output > MAX_IN_ANSWER:
        name = "logprobs" if body.sampling.prompt_logprobs is None or of_output > of_prompts else "prompt_logprobs"
        cure = "a smaller max_tokens" if of_output > of_prompts else "shorter prompts"
        raise InvalidRequest(
            f"{name}: the answer would hold up to {of_prompts + of_output} log probabilities, more than "
            f"{MAX_IN_ANSWER}: ask for fewer of the most likely tokens, fewer choices or {cure}",
            name,
        )


async def written(entries: int, write: Callable[[], Result]) -> Result:
    """Return `write()`, from a thread for many entries."""
    return write() if entries <= INLINE_ENTRIES else await asyncio.to_thread(write)


class TokenNames:
    def __init__(self, detokenizer: Detokenizer, as_ids: bool) -> None:
        self._bytes = detokenizer.token_bytes
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        return self._bytes[token_id].decode(errors="backslashreplace")

    def bytes(self, token_id: int) -> list[int]:
        return list(self._bytes[token_id])


def of_chat(names: TokenNames, token_ids: Sequence[int], logprobs: Logprobs, top: int) -> ChatLogprobs:
    """Return a chat's `choice.logprobs`, with the `top` most likely tokens of each place."""

    def fields(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        return names.name(token_id), max(LEAST, logprob), names.bytes(token_id)

    content = []
    for index, token_id in enumerate(token_ids):
        likely = zip(logprobs.top_ids[index][:top], logprobs.top[index], strict=False)
        tops = [TopLogprob(*fields(*each)) for each in likely]
        content.append(TokenLogprob(*fields(token_id, logprobs.token[index]), tops))
    return ChatLogprobs(content)


def of_prompt(names: TokenNames, token_ids: Sequence[int], logprobs: Logprobs, top: int) -> PromptLogprobs:
    """Return `prompt_logprobs`: null for the first token, then scores by token id."""

    def entry(token_id: int, logprob: float, rank: int) -> PromptLogprob:
        return PromptLogprob(max(LEAST, logprob), rank, names.name(token_id))

    result: PromptLogprobs = [None]
    for index, token_id in enumerate(token_ids[1:]):
        entries = {str(token_id): entry(token_id, logprobs.token[index], logprobs.rank[index])}
        likely = zip(logprobs.top_ids[index][:top], logprobs.top[index], strict=False)
        for rank, (likely_id, logprob) in enumerate(likely, 1):
            entries.setdefault(str(likely_id), entry(likely_id, logprob, rank))
        result.append(entries)
    return result


class CompletionLogprobsWriter:
    """Writes `choice.logprobs` of a completion: four lists with an entry per token."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._offset = 0

    def of_prompt(
        self, token_ids: Sequence[int], logprobs: Logprobs, stream: TextStream, length: int
    ) -> CompletionLogprobs:
        """Return the entries of an echoed prompt; the first has no log probability."""
        result = self._write(token_ids[:1], None, stream) + self._write(token_ids[1:], logprobs, stream)
        result.text_offset = [min(offset, length) for offset in result.text_offset]
        self._offset = length
        return result

    def of_output(
        self, token_ids: Sequence[int], logprobs: Logprobs | None, stream: TextStream
    ) -> CompletionLogprobs:
        """Return the entries of the next tokens; each choice has its own stream."""
        return self._write(token_ids, logprobs, stream)

    def _write(self, token_ids: Sequence[int], logprobs: Logprobs | None, stream: TextStream) -> CompletionLogprobs:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(stream.push((token_id,)))
        names = [self._names.name(token_id) for token_id in token_ids]
        if logprobs is None:
            return CompletionLogprobs(names, [None] * len(names), [None] * len(names), offsets)
        own: list[float | None] = [max(LEAST, each) for each in logprobs.token]
        return CompletionLogprobs(names, own, self._likely(token_ids, logprobs), offsets)

    def _likely(self, token_ids: Sequence[int], logprobs: Logprobs) -> list[dict[str, float] | None]:
        """Return scores by name, the most likely first, with the token's own."""
        result: list[dict[str, float] | None] = []
        for index, token_id in enumerate(token_ids):
            entries: dict[str, float] = {}
            for likely_id, logprob in zip(logprobs.top_ids[index][: self._top], logprobs.top[index], strict=False):
                entries.setdefault(self._names.name(likely_id), max(LEAST, logprob))
            entries.setdefault(self._names.name(token_id), max(LEAST, logprobs.token[index]))
            result.append(entries)
        return result
