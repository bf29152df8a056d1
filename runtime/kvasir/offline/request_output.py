"""Outputs of `LLM.generate` and `LLM.chat`, with vLLM's names."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.client.live_request import Delta, LiveRequest
from kvasir.client.text.detokenizer import Detokenizer
from kvasir.client.text.logprob_lists import joined
from kvasir.link.protocol import Logprobs
from kvasir.offline.lora_request import LoRARequest
from kvasir.offline.request_builder import PreparedRequest


@dataclass(frozen=True)
class Logprob:
    logprob: float
    # 1 is the most likely.
    rank: int
    # \xNN for bytes that are not a whole character
    decoded_token: str


LogprobsByToken = dict[int, Logprob]


@dataclass(frozen=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    # None without `logprobs`.
    cumulative_logprob: float | None
    logprobs: list[LogprobsByToken] | None
    """Scores by token id, one entry per token: the token, then the most likely ones."""
    finish_reason: str | None
    """"stop" or "length"; None before the end."""
    stop_reason: int | str | None
    """The stop string, or the token of `stop_token_ids`; None for an end-of-sequence token."""


@dataclass(frozen=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    """The text or the rendered chat; None for token ids."""
    prompt_token_ids: list[int]
    # None for the first token.
    prompt_logprobs: list[LogprobsByToken | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    """False while more outputs of a stream follow."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    lora_request: LoRARequest | None = None


def request_output(
    request_id: str,
    prepared: PreparedRequest,
    choices: Sequence[tuple[int, LiveRequest, Delta]],
    detokenizer: Detokenizer,
    finished: bool = True,
) -> RequestOutput:
    """Return the output for a prompt. `choices`: index and output."""
    _, request, first = choices[0]
    prompt_token_ids = request.prompt_token_ids.tolist()
    scores = first.prompt_logprobs
    of_prompt = None if scores is None else named_logprobs(prompt_token_ids[1:], scores, detokenizer)
    return RequestOutput(
        request_id=request_id,
        prompt=prepared.prompt,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=None if of_prompt is None else [None, *of_prompt],
        outputs=[completion_output(index, delta, detokenizer) for index, _, delta in choices],
        finished=finished,
        num_cached_tokens=request.trace.cached_tokens or 0,
        lora_request=prepared.lora_request,
    )


def completion_output(index: int, delta: Delta, detokenizer: Detokenizer) -> CompletionOutput:
    logprobs = delta.logprobs
    return CompletionOutput(
        index=index,
        text=delta.text,
        token_ids=delta.token_ids,
        cumulative_logprob=None if logprobs is None else sum(logprobs.token),
        logprobs=None if logprobs is None else named_logprobs(delta.token_ids, logprobs, detokenizer),
        finish_reason=None if delta.finish_reason is None else str(delta.finish_reason),
        stop_reason=delta.stop_reason,
    )


def merged(before: Delta, more: Delta) -> Delta:
    # a copy, because the log probabilities are changed
    return Delta(
        before.text + more.text,
        before.token_ids + more.token_ids,
        more.finish_reason,
        more.stop_reason,
        before.logprobs if more.logprobs is None else joined(before.logprobs, more.logprobs),
        before.prompt_logprobs or more.prompt_logprobs,
    )


def named_logprobs(token_ids: Sequence[int], logprobs: Logprobs, detokenizer: Detokenizer) -> list[LogprobsByToken]:
    def entry(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, detokenizer.token_bytes[token_id].decode(errors="backslashreplace"))

    places = []
    for place, token_id in enumerate(token_ids):
        entries = {token_id: entry(token_id, logprobs.token[place], logprobs.rank[place])}
        likely = zip(logprobs.top_ids[place], logprobs.top[place], strict=True)
        for rank, (likely_id, logprob) in enumerate(likely, 1):
            entries.setdefault(likely_id, entry(likely_id, logprob, rank))
        places.append(entries)
    return places
