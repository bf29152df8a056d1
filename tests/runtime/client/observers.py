"""An observer that records its calls."""

import asyncio
from dataclasses import dataclass, field

from kvasir.client.request_observer import RequestObserver, Trace
from kvasir.link.protocol import FinishReason


@dataclass
class RecordingObserver(RequestObserver):
    """Each list has one entry per call."""

    holds: list[float] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    moved: list[tuple[str, bool]] = field(default_factory=list)
    """Reason, and whether the move is exact."""
    stalls: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finished: list[tuple[FinishReason, int, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each call."""

    def hold_ended(self, seconds: float) -> None:
        self.holds.append(seconds)
        self.changed.set()

    def request_started(self, trace: Trace) -> None:
        self.started.append(trace.prompt_tokens)
        self.changed.set()

    def request_moved(self, trace: Trace, reason: str, exact: bool) -> None:
        self.moved.append((reason, exact))

    def request_resumed(self, trace: Trace, seconds: float) -> None:
        self.stalls.append(seconds)

    def tokens_received(self, trace: Trace, count: int, seconds: float | None) -> None:
        if seconds is None:
            assert trace.first_token is not None
            self.first_tokens.append(trace.first_token - trace.started)
        self.tokens.append(count)
        self.changed.set()

    def request_finished(self, trace: Trace) -> None:
        assert trace.reason is not None
        self.finished.append((trace.reason, trace.prompt_tokens, trace.output_tokens))
        self.changed.set()
