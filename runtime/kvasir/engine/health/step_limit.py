"""StepLimit: the seconds after which a running step counts as stuck."""

from typing import Final

from kvasir.engine.health.step_trace import StepTrace
from kvasir.wire.heartbeats import step_age_limit

STEPS: Final = 10  # times the longest expected step: a growing context raises it chunk by chunk
TIMEOUTS: Final = 3  # heartbeat timeouts: a silent peer is lost first


class StepLimit:
    """Follows the longest step so far, or one with the whole token budget at the best rate. Any thread."""

    def __init__(self, trace: StepTrace, timeout: float) -> None:
        self._trace = trace
        self._least = TIMEOUTS * timeout
        self._most = step_age_limit(timeout)
        self._budget: int | None = None

    def begin(self, max_num_batched_tokens: int) -> None:
        # not if steps overlap: their durations are not those of a batch
        self._budget = max_num_batched_tokens

    def __call__(self) -> float:
        if self._budget is None:
            return self._most
        expected = max(self._trace.longest, self._trace.seconds_per_token * self._budget)
        return min(self._most, max(self._least, STEPS * expected))
