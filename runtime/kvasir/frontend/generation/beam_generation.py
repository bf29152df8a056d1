"""Beam search for the prompts of one HTTP request, outside of the engines.

A step requests one token per live beam: prompt and beam are a new prompt, whose blocks but the last are in the
engine's prefix cache. All steps of a prompt go to one engine while it accepts them.
"""

import asyncio
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed, TooManyRequests
from kvasir.client.request_observer import Trace
from kvasir.frontend.answer_parts import PromptTokensDetails, Usage
from kvasir.frontend.generation.beam_search import Beam, BeamSearch, candidates_of
from kvasir.frontend.generation.generation import Choice
from kvasir.link.protocol import FinishReason, Logprobs
from kvasir.request.params import TOP_LOGPROBS, SamplingParams

MAX_CANDIDATES: Final = int(TOP_LOGPROBS.most)  # an engine reports no more


class BeamGeneration:
    """Cancellation of `choices` aborts every step in flight."""

    def __init__(
        self,
        llm: AsyncLLM,
        ids: tuple[str, str],
        prompts: Sequence[Prompted],
        width: int,
        length_penalty: float,
    ) -> None:
        """`ids`: the answer's, and a unique one. `width`: beams and choices per prompt."""
        self._llm = llm
        self._prompts = prompts
        self.n = width
        self._length_penalty = length_penalty
        self._eos = frozenset(llm.eos_token_ids)
        self.id, self._unique_id = ids
        for prompted in prompts:
            _check_width(width, len(self._end_ids(prompted)))
            if prompted.core.constraint is not None:
                raise InvalidRequest("use_beam_search does not take structured output", "use_beam_search")
        self.prompts = [prompted for prompted in prompts for _ in range(width)]  # by choice
        # by prompt, for the request log: the first step, and the choices' tokens
        self.traces = [
            Trace(params=prompted.params, prompt_tokens=len(prompted.prompt_token_ids)) for prompted in prompts
        ]

    @property
    def usage(self) -> Usage:
        """Return the tokens of prompts and choices, without dropped beams."""
        prompt_tokens = sum(trace.prompt_tokens for trace in self.traces)
        output_tokens = sum(trace.output_tokens for trace in self.traces)
        cached = PromptTokensDetails(sum(trace.cached_tokens or 0 for trace in self.traces))
        return Usage(prompt_tokens, output_tokens, prompt_tokens + output_tokens, cached)

    async def choices(self, wanted: int) -> list[Choice]:
        """Return the `wanted` best choices of each prompt, in order. Raises as AsyncLLM.generate does."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._search(index)) for index in range(len(self._prompts))]
        except ExceptionGroup as errors:
            raise _first_of(errors) from None
        return [choice for task in tasks for choice in task.result()[:wanted]]

    async def _search(self, index: int) -> list[Choice]:
        prompted = self._prompts[index]
        end_ids = self._end_ids(prompted)
        search = BeamSearch(
            self.n,
            len(prompted.prompt_token_ids),
            prompted.params.max_tokens,
            end_ids,
            self._length_penalty,
        )
        steps = _Steps(
            self._llm,
            f"{self._unique_id}-{index}",
            prompted,
            top=max(candidates_of(self.n, len(end_ids)), prompted.params.logprobs or 0),
        )
        while search.live:
            search.advance(await steps.next_of(search.live))
        if len(search.best) < self.n:
            raise RequestFailed(
                f"beam search found {len(search.best)} of {self.n} texts: the model excludes all other tokens"
            )
        choices = [self._choice(prompted, beam) for beam in search.best]
        self.traces[index] = self._trace(steps.first, choices)
        return choices

    def _end_ids(self, prompted: Prompted) -> frozenset[int]:
        stops = frozenset(prompted.params.stop_token_ids)
        return stops if prompted.params.ignore_eos else stops | self._eos

    def _choice(self, prompted: Prompted, beam: Beam) -> Choice:
        token_ids = beam.token_ids.tolist()
        shown = token_ids[:-1] if beam.ended and not prompted.include_stop else token_ids
        stream = self._llm.detokenizer.stream(
            prompted.prompt_token_ids,
            prompted.skip_special_tokens,
            prompted.spaces_between_special_tokens,
            prompted.shown_special_ids,
        )
        return Choice(
            prompted,
            stream.push(shown) + stream.finish(),
            token_ids,
            FinishReason.STOP if beam.ended else FinishReason.LENGTH,
            token_ids[-1] if beam.ended and token_ids[-1] not in self._eos else None,
            None if prompted.params.logprobs is None else beam.logprobs(),
        )

    def _trace(self, first: Trace, choices: Sequence[Choice]) -> Trace:
        reason = choices[0].finish_reason
        return replace(first, output_tokens=sum(len(choice.token_ids) for choice in choices), reason=reason)


class _Steps:
    def __init__(self, llm: AsyncLLM, id: str, prompted: Prompted, top: int) -> None:
        self._llm = llm
        self._id = id
        self._prompted = prompted
        self._params = SamplingParams(max_tokens=1, seed=0, temperature=0.0, logprobs=top)
        self._rank = prompted.data_parallel_rank
        self._count = 0
        self.first = Trace()  # of the prompt's step

    async def next_of(self, beams: Sequence[Beam]) -> list[Logprobs]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._next(beam.token_ids)) for beam in beams]
        except ExceptionGroup as errors:
            raise _first_of(errors) from None
        return [task.result() for task in tasks]

    async def _next(self, token_ids: "array[int]") -> Logprobs:
        """Request a beam's next token. A later step waits for room, and is repeated once if its engine is lost."""
        if not token_ids:
            return await self._ask(self._prompted, self.first)
        prompted = replace(
            self._prompted, prompt_token_ids=self._prompted.prompt_token_ids + token_ids, hashes=None
        )
        repeated = False
        while True:
            if self._rank is not None and not self._has_engine(self._rank):  # do not wait for another engine
                self._rank = self._prompted.data_parallel_rank
            try:
                return await self._ask(replace(prompted, data_parallel_rank=self._rank), Trace())
            except TooManyRequests as error:
                await asyncio.sleep(error.retry_after)
            except (EngineUnavailable, RequestFailed):
                if repeated:
                    raise
                repeated, self._rank = True, self._prompted.data_parallel_rank

    def _has_engine(self, rank: int) -> bool:
        return any(engine.usable and engine.rank == rank for engine in self._llm.engines.values())

    async def _ask(self, prompted: Prompted, trace: Trace) -> Logprobs:
        self._count += 1
        prompted = replace(prompted.with_core(params=self._params), stops=None)
        result: Logprobs | None = None
        async with aclosing(self._llm.generate(f"{self._id}-{self._count}", prompted, trace)) as deltas:
            async for delta in deltas:
                result = delta.logprobs
        assert result is not None  # they were asked for
        self._rank = trace.rank
        return result


def _check_width(width: int, num_end_ids: int) -> None:
    """Raise InvalidRequest if a step needs more tokens than an engine reports."""
    if candidates_of(width, num_end_ids) > MAX_CANDIDATES:
        most = min(MAX_CANDIDATES // 2, MAX_CANDIDATES - num_end_ids)
        advice = f"give at most {most}" if most > 0 else "give fewer stop_token_ids"
        raise InvalidRequest(
            f"n is {width}: beam search with {num_end_ids} end-of-sequence and stop tokens cannot have so many "
            f"beams, {advice}",
            "n",
        )


def _first_of(errors: ExceptionGroup) -> Exception:
    error = errors.exceptions[0]
    return _first_of(error) if isinstance(error, ExceptionGroup) else error
