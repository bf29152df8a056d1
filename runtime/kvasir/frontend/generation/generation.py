"""The generation of one HTTP request: its choices run concurrently and yield one sequence of events."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from kvasir.client.async_llm import AsyncLLM, Delta
from kvasir.client.input.prompted import Prompted
from kvasir.client.request_observer import PromptChoices, Trace
from kvasir.client.text.logprob_lists import joined, mean
from kvasir.frontend.answer_parts import PromptTokensDetails, Usage
from kvasir.link.protocol import FinishReason, Logprobs

Event = tuple[int, Delta]  # index of a choice, new text and tokens
Scores = asyncio.Future[Logprobs | None]  # of a prompt, from its first choice


@dataclass
class Choice:
    prompted: Prompted
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    pooled: bytes | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.pooled = delta.pooled
        if delta.logprobs is not None:
            self.logprobs = joined(self.logprobs, delta.logprobs)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs


class Generation:
    """The choices of a request. Closing `events`, or cancelling its reader, aborts all of them."""

    def __init__(
        self, llm: AsyncLLM, ids: tuple[str, str], prompts: Sequence[Prompted], n: int, prompt_only: bool = False
    ) -> None:
        """`ids`: the answer's, and a unique one. `n`: choices per prompt. `prompt_only`: drop the one token that an
        engine has to generate.
        """
        self._llm = llm
        self.n = n
        self._prompt_only = prompt_only
        self.id, self._unique_id = ids
        self.prompts = [prompted.child(index) for prompted in prompts for index in range(n)]  # by choice
        choices = [PromptChoices(n) if n > 1 else None for _ in prompts]
        # by choice, for the request log
        self.traces = [
            Trace(choices=None if index % n else n, siblings=choices[index // n])
            for index in range(len(self.prompts))
        ]
        self.output_tokens = 0
        self._unfinished = len(self.prompts)

    @property
    def complete(self) -> bool:
        return self._unfinished == 0

    @property
    def usage(self) -> Usage:
        """Return the usage so far. A prompt counts once for its choices."""
        prompt_tokens = sum(len(prompted.prompt_token_ids) for prompted in self.prompts[:: self.n])
        cached_tokens = sum(trace.cached_tokens or 0 for trace in self.traces[:: self.n])
        total_tokens = prompt_tokens + self.output_tokens
        return Usage(prompt_tokens, self.output_tokens, total_tokens, PromptTokensDetails(cached_tokens))

    def waits_for(self) -> str | None:
        """Return the progress of the engine that choices wait for, or None."""
        return self._llm.waits_for(self.traces, self.prompts[0].data_parallel_rank)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of all choices. Raises the first error of AsyncLLM.generate."""
        if len(self.prompts) > 1:
            async with aclosing(self._many()) as events:
                async for index, delta in events:
                    yield self._counted(index, delta)
        else:
            async with aclosing(self._llm.generate(self._unique_id, self.prompts[0], self.traces[0])) as deltas:
                async for delta in deltas:
                    yield self._counted(0, delta)

    def _counted(self, index: int, delta: Delta) -> Event:
        if self._prompt_only:
            delta = Delta("", [], FinishReason.LENGTH, prompt_logprobs=delta.prompt_logprobs)
        self.output_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._unfinished -= 1
        return index, delta

    async def choices(self, wanted: int, seen: Callable[[int, Delta], object] | None = None) -> list[Choice]:
        """Return, for each prompt, the `wanted` choices of the highest log probability per token.

        `seen` gets each event.
        """
        choices = [Choice(prompted) for prompted in self.prompts]
        async with aclosing(self.events()) as events:
            async for index, delta in events:
                choices[index].add(delta)
                if seen is not None:
                    seen(index, delta)
        if wanted == self.n:
            return choices
        best = []
        for start in range(0, len(choices), self.n):
            candidates = choices[start : start + self.n]
            best += sorted(candidates, key=lambda choice: mean(choice.logprobs), reverse=True)[:wanted]
        return best

    async def _many(self) -> AsyncGenerator[Event, None]:
        # One place per choice: for a slow reader, AsyncLLM merges the deltas.
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(len(self.prompts))
        scores = [self._awaited_scores(prompted) for prompted in self.prompts[:: self.n]]
        tasks = [
            asyncio.create_task(self._feed(index, queue, scores[index // self.n]))
            for index in range(len(self.prompts))
        ]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _awaited_scores(self, prompted: Prompted) -> Scores | None:
        """Return a future of the prompt's log probabilities, if its choices share them."""
        shared = self.n > 1 and prompted.params.prompt_logprobs is not None
        return asyncio.get_running_loop().create_future() if shared else None

    async def _feed(
        self, index: int, queue: asyncio.Queue[Event | Exception | None], scores: Scores | None
    ) -> None:
        try:
            deltas = self._llm.generate(f"{self._unique_id}-{index}", self.prompts[index], self.traces[index])
            async with aclosing(deltas):
                async for delta in deltas:
                    if scores is not None:  # the first delta
                        await self._share(index, delta, scores)
                        scores = None
                    await queue.put((index, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    async def _share(self, index: int, delta: Delta, scores: Scores) -> None:
        """Pass the prompt's log probabilities from its first choice to the others."""
        # if it fails, so does the whole generation
        if index % self.n == 0:
            scores.set_result(delta.prompt_logprobs)
        else:
            delta.prompt_logprobs = await scores
