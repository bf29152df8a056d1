"""What AsyncLLM tells about each request as it happens; the frontend's metrics implement it."""

from typing import Protocol

from kvasir.protocol import FinishReason


class RequestObserver(Protocol):
    """Called on the event loop, once per request and step at most: must be quick and must not raise.

    A request that is refused (no engine, too many requests) is not started. Each started one is finished once.
    """

    def request_started(self, prompt_tokens: int) -> None:
        """An engine was given the request."""

    def first_token(self, seconds: float) -> None:
        """Its first token came, this long after it was started; `tokens_received` follows for the same token."""

    def tokens_received(self, count: int, seconds: float | None) -> None:
        """A step brought this many tokens, this long after the request's last ones; None for its first."""

    def request_finished(
        self, reason: FinishReason, seconds: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        """It is over: ABORT when the client left, ERROR when it failed or its engine was lost."""
