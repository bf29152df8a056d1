"""The time after which a running step means that the engine is stuck, from the steps that the engine has shown."""

from typing import Final

from kvasir.engine.health.step_trace import StepTrace
from kvasir.wire.heartbeats import step_age_limit

STEPS: Final = 10
"""The limit in terms of the longest step to be expected: room for longer contexts and for busy machines. Work that
grows with the context grows chunk by chunk, and each chunk raises the longest step that the engine has shown."""
TIMEOUTS: Final = 3
"""The least limit in terms of the heartbeat timeout: a step is not stuck before a silent peer is lost."""


class StepLimit:
    """Called for the limit in seconds, by any thread.

    The longest step to be expected is the longest one so far, or one with the whole token budget at the best rate
    so far, whichever takes longer. Small batches compute fewer tokens per second than large ones, so the estimate
    is on the safe side until the engine has shown a large batch.
    """

    def __init__(self, trace: StepTrace, timeout: float) -> None:
        """`timeout`: the heartbeat timeout. The limit is `step_age_limit` of it until `begin`."""
        self._trace = trace
        self._least = TIMEOUTS * timeout
        self._most = step_age_limit(timeout)
        self._budget: int | None = None

    def begin(self, max_num_batched_tokens: int) -> None:
        """Follow the steps from now on. Do not call this if steps overlap: their times are not those of a batch."""
        self._budget = max_num_batched_tokens

    def __call__(self) -> float:
        if self._budget is None:
            return self._most
        expected = max(self._trace.longest, self._trace.seconds_per_token * self._budget)
        return min(self._most, max(self._least, STEPS * expected))
