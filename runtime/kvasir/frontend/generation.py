"""One HTTP request's generation: its prompts run at the same time, their deltas come as one sequence of events."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from kvasir.client.async_llm import AsyncLLM, Delta
from kvasir.client.input_processor import Prompted
from kvasir.protocol import FinishReason

Event = tuple[int, Delta]
"""Index of the prompt, what is new of its output."""


@dataclass
class Choice:
    """The whole output for one prompt."""

    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


class Generation:
    """Closing `events`, or cancelling the task that reads it, aborts all of its prompts."""

    def __init__(self, llm: AsyncLLM, id: str, prompts: Sequence[Prompted]) -> None:
        self._llm = llm
        self.id = id
        self.prompts = prompts
        self.output_tokens = 0

    @property
    def usage(self) -> dict[str, int]:
        prompt_tokens = sum(len(prompted.prompt_token_ids) for prompted in self.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": prompt_tokens + self.output_tokens,
        }

    async def events(self) -> AsyncGenerator[Event, None]:
        """Raises what AsyncLLM.generate raises, for the first prompt that fails."""
        events = self._one() if len(self.prompts) == 1 else self._many()
        async with aclosing(events):
            async for event in events:
                self.output_tokens += len(event[1].token_ids)
                yield event

    async def choices(self) -> list[Choice]:
        """Everything, when it is finished."""
        choices = [Choice(prompted.prompt_token_ids) for prompted in self.prompts]
        async with aclosing(self.events()) as events:
            async for index, delta in events:
                choice = choices[index]
                choice.text += delta.text
                choice.token_ids += delta.token_ids
                choice.finish_reason, choice.stop_token_id = delta.finish_reason, delta.stop_token_id
        return choices

    async def _one(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self._llm.generate(self.id, self.prompts[0])) as deltas:
            async for delta in deltas:
                yield 0, delta

    async def _many(self) -> AsyncGenerator[Event, None]:
        # As large as there are prompts: while the reader is slow, the deltas wait (and grow) in AsyncLLM.
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(len(self.prompts))
        tasks = [asyncio.create_task(self._feed(index, queue)) for index in range(len(self.prompts))]
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

    async def _feed(self, index: int, queue: asyncio.Queue[Event | Exception | None]) -> None:
        try:
            async with aclosing(self._llm.generate(f"{self.id}-{index}", self.prompts[index])) as deltas:
                async for delta in deltas:
                    await queue.put((index, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)
