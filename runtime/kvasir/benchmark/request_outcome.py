"""The outcome of one request for its client."""

import dataclasses


@dataclasses.dataclass
class RequestOutcome:
    """Times in seconds of time.perf_counter()."""

    start: float
    first: float = 0.0
    """Arrival of the first token of a streamed answer."""
    last: float = 0.0
    gaps: list[float] = dataclasses.field(default_factory=list)
    """Seconds between chunks."""
    tokens: int = 0
    prompt_tokens: int = 0
    hung_up: bool = False
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.start

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def end_to_end(self) -> float:
        return self.last - self.start

    def chunk_came(self, now: float) -> None:
        if self.first:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.last = now
