"""The buffer between output processor and reader. A slow reader gets one merged delta."""

import asyncio

import msgspec

from kvasir.client.text.logprob_lists import joined
from kvasir.link.protocol import FinishReason, Logprobs


class Delta(msgspec.Struct):
    text: str
    """Empty only in the last delta: unfinished text comes later."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    """Set only in the last delta. A failed request ends with an exception."""
    stop_reason: int | str | None = None
    """The token of `stop_token_ids` or the stop string; None for an end-of-sequence token."""
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    """Set only in the first delta, from the second token on."""
    pooled: bytes | None = None
    """Set only in the delta of a request of kind POOL: float32, little endian."""


class Collector:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._logprobs: Logprobs | None = None
        self._prompt_logprobs: Logprobs | None = None
        self._pooled: bytes | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(
        self,
        text: str,
        token_ids: list[int],
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> None:
        if text:
            self._texts.append(text)
        self._token_ids += token_ids
        if finish_reason is not None:
            self._finish_reason, self._stop_reason = finish_reason, stop_reason
        if self._readable:
            self._wake()

    def put_logprobs(self, logprobs: Logprobs | None, prompt_logprobs: Logprobs | None) -> None:
        if logprobs is not None:
            # before `put` of their tokens, as a reader must find both
            self._logprobs = joined(self._logprobs, logprobs)
        if prompt_logprobs is not None:
            self._prompt_logprobs = prompt_logprobs

    def put_pooled(self, vector: bytes) -> None:
        # before `put` of the end
        self._pooled = vector

    def fail(self, error: Exception) -> None:
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
        return self._pop()

    def take_now(self) -> Delta | None:
        """Return new output, even tokens without text yet, or None."""
        if self._readable or self._token_ids:
            return self._pop()
        if self._error is not None:
            raise self._error
        return None

    def _pop(self) -> Delta:
        delta = Delta(
            "".join(self._texts),
            self._token_ids,
            self._finish_reason,
            self._stop_reason,
            self._logprobs,
            self._prompt_logprobs,
            self._pooled,
        )
        self._texts, self._token_ids = [], []
        self._logprobs = self._prompt_logprobs = None
        return delta

    @property
    def _readable(self) -> bool:
        return bool(self._texts) or self._finish_reason is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
