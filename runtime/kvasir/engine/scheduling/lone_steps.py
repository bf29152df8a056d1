"""LoneSteps: computes one suspect at a time, alone, in turn with steps for the others.

If such a step ends the engine, the suspect is the cause, so no other step overlaps it.
"""

from kvasir.engine.engine_request import EngineRequest, RequestStatus
from kvasir.engine.scheduling.request_queues import RequestQueues


class LoneSteps:
    def __init__(self, queues: RequestQueues) -> None:
        self.current: EngineRequest | None = None  # the suspect with a row
        self._waits = False
        self._queues = queues
        self._is_due = True
        self._in_flight = False  # the last step was a lone one
        self._is_refused = False  # no suspect could take a row

    @property
    def any(self) -> bool:
        return self.current is not None or bool(self._queues.suspects)

    @property
    def waits(self) -> bool:
        """Return whether a suspect waits for resources that no other request may take."""
        return self._waits and bool(self._queues.suspects)

    @property
    def can_follow(self) -> bool:
        return self.any and not self._is_refused

    def must_wait(self, in_flight: bool) -> bool:
        # steps in flight must be updated first
        return in_flight and (self._in_flight or self._is_due)

    def next(self) -> EngineRequest | None:
        """Return the suspect of the next step; None for a step of the others."""
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
