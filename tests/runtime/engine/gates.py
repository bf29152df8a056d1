"""Gates and rations as features add them, which the scheduler's tests share."""

from collections.abc import Callable

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.engine.scheduling.rations import Ration


class ReadyGate(AdmissionGate):
    """Skips requests that are not ready, and checks that each `took` has one `left`."""

    def __init__(self) -> None:
        self.unready: set[str] = set()
        """Ids of requests."""
        self.holders: set[str] = set()

    def admits(self, request: EngineRequest) -> Verdict:
        assert request.request_id not in self.holders
        return Verdict.SKIP if request.request_id in self.unready else Verdict.ADMIT

    def took(self, request: EngineRequest) -> None:
        assert request.request_id not in self.holders
        self.holders.add(request.request_id)

    def left(self, request: EngineRequest) -> None:
        self.holders.remove(request.request_id)

    def check_idle(self) -> None:
        assert not self.holders, f"{len(self.holders)} requests hold their resource"


class SlotGate(AdmissionGate):
    """Slots that requests share by key, as adapters do: without a slot for its key a request is skipped."""

    def __init__(self, num_slots: int, key_of: Callable[[str], str]) -> None:
        self.wake: Callable[[str], None] = lambda request_id: None
        """Set to the scheduler's."""
        self.users: dict[str, int] = {}
        self._num_slots = num_slots
        self._key_of = key_of
        self._skipped: list[str] = []

    def admits(self, request: EngineRequest) -> Verdict:
        if self._key_of(request.request_id) in self.users or len(self.users) < self._num_slots:
            return Verdict.ADMIT
        self._skipped.append(request.request_id)
        return Verdict.SKIP

    def took(self, request: EngineRequest) -> None:
        key = self._key_of(request.request_id)
        self.users[key] = self.users.get(key, 0) + 1

    def left(self, request: EngineRequest) -> None:
        key = self._key_of(request.request_id)
        self.users[key] -= 1
        if not self.users[key]:
            del self.users[key]
            skipped, self._skipped = self._skipped, []
            for request_id in skipped:
                self.wake(request_id)

    def check_idle(self) -> None:
        assert not self.users


class WaitGate(AdmissionGate):
    """Closed for every request until a test opens it."""

    def __init__(self) -> None:
        self.is_open = False

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT if self.is_open else Verdict.WAIT


class TokenRation(Ration):
    """Gives each request in a step at most these tokens; ids that are missing get all that they want."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.joined_tokens: list[dict[str, tuple[int, int]]] = []
        """For each step: the first token and the count, by request id."""
        self.asked: set[tuple[str, int, int]] = set()
        """Request id, first token and count."""

    def step_begins(self, num_running: int, num_waiting: int) -> None:
        self.joined_tokens.append({})

    def most(self, request: EngineRequest, count: int) -> int:
        self.asked.add((request.request_id, request.num_computed_tokens, count))
        return min(count, self.limits.get(request.request_id, count))

    def joined(self, request: EngineRequest, count: int) -> None:
        self.joined_tokens[-1][request.request_id] = (request.num_computed_tokens, count)
