"""The events and the history (Trace) of a request."""

import time
from dataclasses import dataclass, field

from kvasir.link.protocol import FinishReason
from kvasir.request.params import SamplingParams


@dataclass(slots=True, eq=False)
class PromptChoices:
    unfinished: int
    most_tokens: int = 0


@dataclass(slots=True, eq=False)
class Trace:
    """Times are those of time.perf_counter."""

    params: SamplingParams | None = None
    """None: it samples nothing, and no prefix is looked up."""
    choices: int | None = 1
    """None for all choices but the first, so that a prompt counts once."""
    siblings: PromptChoices | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    engine: str = ""
    rank: int = 0
    attempts: int = 0
    waiting_since: float | None = None
    waited_seconds: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    reason: FinishReason | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    """Time from the first step to the first token."""
    decode_seconds: float | None = None
    """Time from the first token to the last; None across several engines."""
    num_preemptions: int = 0

    @property
    def waited(self) -> float:
        """Return the seconds without an engine so far."""
        since = self.waiting_since
        return self.waited_seconds + (0.0 if since is None else time.perf_counter() - since)


class RequestObserver:
    """Observes nothing. Overridden methods are called on the event loop: quick, without exceptions.

    Each started request finishes once.
    """

    def hold_ended(self, seconds: float) -> None:
        pass

    def request_started(self, trace: Trace) -> None:
        pass

    def request_moved(self, trace: Trace, reason: str, exact: bool) -> None:
        """Another engine has continued the request. `exact`: with equal numerics."""

    def request_resumed(self, trace: Trace, seconds: float) -> None:
        """`seconds` from the loss of the engine to the next token."""

    def tokens_received(self, trace: Trace, count: int, seconds: float | None) -> None:
        """`seconds` since the previous tokens; None for the first."""

    def request_finished(self, trace: Trace) -> None:
        pass
