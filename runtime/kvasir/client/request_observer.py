"""What AsyncLLM tells about each request as it happens; the frontend's metrics implement it, its log reads it.

A Trace is written by AsyncLLM and the output processor only. Whoever starts a request may keep its trace.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

from kvasir.link.protocol import FinishReason
from kvasir.params import SamplingParams


@dataclass(slots=True, eq=False)
class Trace:
    """What became of one request so far. Times are on the clock of time.perf_counter."""

    params: SamplingParams | None = None
    choices: int | None = 1
    """That are generated for its prompt; None for those after the first: a prompt tells it once."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the engine's prefix cache; None until the engine has told."""
    engine: str = ""
    """The incarnation that it was last given to; empty before."""
    rank: int = 0
    """Of that engine."""
    attempts: int = 0
    """Engines that it was given to."""
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    reason: FinishReason | None = None
    """Why it ended: ABORT when the client left, ERROR when it failed or its engine was lost."""
    queue_seconds: float | None = None
    """Time in the engine's queue before its first step, as the engine told."""


class RequestObserver(Protocol):
    """Called on the event loop, once per request and step at most: must be quick and must not raise.

    A request that is refused (no engine, too many requests) is not started. Each started one is finished once.
    """

    def request_started(self, trace: Trace) -> None:
        """An engine was given the request."""

    def tokens_received(self, trace: Trace, count: int, seconds: float | None) -> None:
        """A step brought this many tokens, this long after the request's last ones; None for its first."""

    def request_finished(self, trace: Trace) -> None:
        """It is over: `finished` and `reason` are set."""
