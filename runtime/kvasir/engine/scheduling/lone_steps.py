"""Lone steps: a suspect is computed in steps without any other request, in turn with steps for the others.

An engine may have failed because of a suspect (AddRequest.alone). If it fails again, the step has one request only,
and that one is the cause. A lone step does not overlap another step. One suspect at a time has a row; the others
wait in `RequestQueues.suspects`.
"""

from kvasir.engine.scheduling.engine_request import EngineRequest, RequestStatus
from kvasir.engine.scheduling.request_queues import RequestQueues


class LoneSteps:
    """Decides which steps are lone ones. The scheduler asks it for each step while `any` is true."""

    def __init__(self, queues: RequestQueues) -> None:
        self.current: EngineRequest | None = None
        """The suspect that has a row. Steps for the others leave it out."""
        self._waits = False
        self._queues = queues
        self._is_due = True
        self._in_flight = False
        """The last step that was scheduled is a lone one."""
        self._is_refused = False
        """No waiting suspect could take a row when it was last asked about."""

    @property
    def any(self) -> bool:
        return self.current is not None or bool(self._queues.suspects)

    @property
    def waits(self) -> bool:
        """Whether the first suspect waits for what running requests hold: no other request may take it."""
        return self._waits and bool(self._queues.suspects)

    @property
    def can_follow(self) -> bool:
        """Whether a lone step can be scheduled after a step in which no other request could be."""
        return self.any and not self._is_refused

    def must_wait(self, in_flight: bool) -> bool:
        """Return whether steps in flight must be updated before the next one is scheduled."""
        return in_flight and (self._in_flight or self._is_due)

    def next(self) -> EngineRequest | None:
        """Return the suspect that the next step computes; None if the step is for the others."""
        current = self.current
        if current is not None and not (current.status is RequestStatus.RUNNING and current.is_suspect):
            current = self.current = None
        has_others = bool(self._queues.waiting) or len(self._queues.running) > (current is not None)
        self._waits = self._is_refused = False
        if self._is_due or not has_others:
            current = self.current = current or self._queues.next_admissible(self._queues.suspects)
            if current is not None:
                self._is_due, self._in_flight = not has_others, True
                return current
            self._is_refused = True
            self._waits = bool(self._queues.suspects)
        self._is_due, self._in_flight = True, False
        return None
