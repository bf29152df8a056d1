"""An observer that keeps what it is told."""

import asyncio
from dataclasses import dataclass, field

from kvasir.protocol import FinishReason


@dataclass
class RecordingObserver:
    """Implements RequestObserver; each list has one entry per call."""

    started: list[int] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finished: list[tuple[FinishReason, int, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each call."""

    def request_started(self, prompt_tokens: int) -> None:
        self.started.append(prompt_tokens)
        self.changed.set()

    def first_token(self, seconds: float) -> None:
        self.first_tokens.append(seconds)

    def tokens_received(self, count: int, seconds: float | None) -> None:
        self.tokens.append(count)
        self.changed.set()

    def request_finished(
        self, reason: FinishReason, seconds: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        self.finished.append((reason, prompt_tokens, output_tokens))
        self.changed.set()
