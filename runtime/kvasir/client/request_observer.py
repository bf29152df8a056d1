"""The events of each request that AsyncLLM reports: the frontend's metrics observe them, its log reads the Trace.

Only AsyncLLM and the output processor write a Trace. The caller of a request may keep its trace.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

from kvasir.link.protocol import FinishReason
from kvasir.request.params import SamplingParams


@dataclass(slots=True, eq=False)
class PromptChoices:
    """The choices of one prompt."""

    unfinished: int
    most_tokens: int = 0
    """Tokens of the longest choice that has ended."""


@dataclass(slots=True, eq=False)
class Trace:
    """The history of one request. Times are those of time.perf_counter."""

    params: SamplingParams | None = None
    choices: int | None = 1
    """Number of choices for the prompt; None for all choices but the first, so that a prompt counts once."""
    siblings: PromptChoices | None = None
    """All choices of the prompt, if there are several."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the engine's prefix cache; None until the engine has reported it."""
    engine: str = ""
    """The incarnation of the engine that has the request; empty before it was sent to one."""
    rank: int = 0
    """The rank of that engine."""
    attempts: int = 0
    """Number of engines that the request was sent to."""
    waiting_since: float | None = None
    """When the request began to wait in the frontend's queue; None if it does not wait there."""
    waited_seconds: float = 0.0
    """Time that the request waited there before, not counting the present wait."""
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    reason: FinishReason | None = None
    """Why it ended: ABORT if the client disconnected, ERROR if it failed or its engine was lost."""
    queue_seconds: float | None = None
    """Time in the engine's queue before its first step, as reported by the engine."""
    prefill_seconds: float | None = None
    """Time in the engine from then to the first token, as reported by the engine."""
    decode_seconds: float | None = None
    """Time in the engine from the first token to the last one, as reported by the engine; None if it was not the
    same engine."""
    num_preemptions: int = 0
    """How often the request was preempted, as reported by the engine."""


class RequestObserver(Protocol):
    """Called on the event loop, at most once per request and step. Methods must be quick and must not raise.

    A request that the frontend rejects (no engine, too many requests) is not started. One that an engine rejects is
    started, and ends with the reason ERROR. Each started request is finished once.
    """

    def hold_ended(self, seconds: float) -> None:
        """A request has waited while no engine was ready: now one is, or it has failed, or its client has left."""

    def request_started(self, trace: Trace) -> None:
        """The request was sent to an engine."""

    def request_moved(self, trace: Trace, reason: str, exact: bool) -> None:
        """Another engine has continued the request, because its engine was lost or gave it back (`reason`).

        `exact`: the engine is of the same numerics class, or there were no tokens yet.
        """

    def request_resumed(self, trace: Trace, seconds: float) -> None:
        """The first token after a move came, `seconds` after the request had lost its engine."""

    def tokens_received(self, trace: Trace, count: int, seconds: float | None) -> None:
        """A step produced `count` tokens, `seconds` after the previous ones; None for the first ones."""

    def request_finished(self, trace: Trace) -> None:
        """The request ended: `finished` and `reason` are set."""
