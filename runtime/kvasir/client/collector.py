"""Between the output processor and the consumer of a request: holds at most one delta, however slow it reads."""

import asyncio

import msgspec

from kvasir.protocol import FinishReason


class Delta(msgspec.Struct):
    """What is new of a request since the last delta."""

    text: str
    """Empty only in the last delta: tokens that give no text yet come with the next ones that do."""
    token_ids: list[int]
    """The stop token that ended the request included, though it gives no text."""
    finish_reason: FinishReason | None = None
    """STOP or LENGTH in the last delta; a request that fails ends with an exception instead."""
    stop_token_id: int | None = None
    """With STOP: the token of `stop_token_ids` that ended it; None for an end-of-sequence token."""


class Collector:
    """Merges deltas until they are read; wakes the reader once for all that came since it last looked."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._stop_token_id: int | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(
        self, text: str, token_ids: list[int], finish_reason: FinishReason | None, stop_token_id: int | None
    ) -> None:
        if text:
            self._texts.append(text)
        self._token_ids += token_ids
        if finish_reason is not None:
            self._finish_reason, self._stop_token_id = finish_reason, stop_token_id
        if self._readable:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Raise this in the reader, after what came before it has been read."""
        self._error = error
        self._wake()

    async def take(self) -> Delta:
        """Wait for text or the end. Raises the exception given to `fail`."""
        while not self._readable:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        delta = Delta("".join(self._texts), self._token_ids, self._finish_reason, self._stop_token_id)
        self._texts, self._token_ids = [], []
        return delta

    @property
    def _readable(self) -> bool:
        return bool(self._texts) or self._finish_reason is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
