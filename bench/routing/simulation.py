"""One run: the sessions of a trace over simulated engines, with one policy."""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

from kvasir.link.protocol import AddRequest, RequestOutput
from kvasir.request.hashing import split_chain
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import to_wire

from .engines import Clock, Fetches, SimulatedEngine, Size, Speed
from .policies import Policy, Request
from .traces import BLOCK_SIZE, Session

HEARTBEAT_SECONDS = 1.0


def _nothing() -> None: ...


@dataclass
class Results:
    # Seconds from the arrival of each request to its first token.
    first_tokens: list[float] = field(default_factory=list)
    # Seconds of real time that each decision took.
    decisions: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    # Tokens that a cache without limits, shared by all engines, would have held.
    known_tokens: int = 0
    # Values of each engine.
    busy_seconds: list[float] = field(default_factory=list)
    adapter_reads: list[int] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def imbalance(self) -> float:
        return max(self.busy_seconds) * len(self.busy_seconds) / sum(self.busy_seconds)

    def first_token(self, share: float) -> float:
        times = sorted(self.first_tokens)
        return times[min(len(times) - 1, int(share * len(times)))]


class Simulation:
    """The events in the order of the simulated time."""

    def __init__(
        self, policy: type[Policy], sessions: Sequence[Session], speeds: Sequence[Speed], size: Size, frontends: int
    ) -> None:
        self.results = Results()
        self._clock = Clock()
        names = [f"frontend-{n}" for n in range(frontends)]
        self._engines = [
            SimulatedEngine(f"engine-{place}", speed, size, self._clock, names, self._exchange(policy, speed))
            for place, speed in enumerate(speeds)
        ]
        for engine in self._engines:
            engine.connect(self._engines, partial(self._begin_if_idle, engine))
        self._place = {engine.name: place for place, engine in enumerate(self._engines)}
        self._policies = {name: policy(self._engines, self._clock) for name in names}
        self._sessions = sessions
        self._requests: dict[str, tuple[str, Request]] = {}
        self._seen: set[bytes] = set()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, str, tuple[int, int], Callable[[], None]]] = []

    def run(self) -> Results:
        for number, session in enumerate(self._sessions):
            self._at(session[0].pause, "arrive", number, 0)
        self._at(0.0, "heartbeat")
        with patch("time.monotonic", self._clock):
            while self._events:
                self._clock.now, _, kind, (first, second), call = heapq.heappop(self._events)
                match kind:
                    case "call":
                        call()
                    case "arrive":
                        self._arrive(first, second)
                    case "step":
                        self._end_step(self._engines[first])
                    case "heartbeat":
                        self._heartbeat()
        self.results.busy_seconds = [engine.busy_seconds for engine in self._engines]
        self.results.adapter_reads = [engine.num_reads for engine in self._engines]
        return self.results

    def _at(
        self, when: float, kind: str, first: int = 0, second: int = 0, call: Callable[[], None] = _nothing
    ) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), kind, (first, second), call))

    def _arrive(self, session: int, place: int) -> None:
        number, turn, now = next(self._numbers), self._sessions[session][place], self._clock.now
        params = SamplingParams(max_tokens=turn.num_output, seed=0, ignore_eos=True)
        request = Request(f"r{number}", turn, params, now, session, place)
        frontend = list(self._policies)[number % len(self._policies)]
        _ = turn.chain  # hashing is not a part of the decision
        self._send(frontend, request)

    def _send(self, frontend: str, arrived: Request | None = None) -> None:
        policy = self._policies[frontend]
        while True:
            began = time.perf_counter()
            sent = policy.next_sent(arrived)
            self.results.decisions.append(time.perf_counter() - began)
            if sent is None:
                return
            arrived = None
            request, picked = sent
            policy.sent(request, picked)
            self._note_known(request)
            engine, turn = self._engines[picked], request.turn
            request.engine = engine.name
            self._requests[request.request_id] = (frontend, request)
            source = policy.kv_source
            message = AddRequest(
                request.request_id, 1, to_wire(turn.prompt), b"", request.params, turn.chain, kv_source=source
            )
            self._add(engine, frontend, message, turn.adapter)

    def _add(self, engine: SimulatedEngine, frontend: str, message: AddRequest, adapter: str) -> None:
        def add() -> None:
            engine.add(frontend, message)
            self._begin_if_idle(engine)

        now = self._clock.now
        if adapter and (ready := engine.adapter_ready_at(adapter, now)) > now:
            self._at(ready, "call", call=add)
        else:
            add()

    def _note_known(self, request: Request) -> None:
        hashes = split_chain(request.turn.chain)
        known = next((place for place, h in enumerate(hashes) if h not in self._seen), len(hashes))
        self.results.known_tokens += min(known * BLOCK_SIZE, request.num_tokens - 1)
        self._seen.update(split_chain(request.turn.whole_chain))

    def _exchange(self, policy: type[Policy], speed: Speed) -> Fetches | None:
        return (
            Fetches(speed, self._clock, lambda when, call: self._at(when, "call", call=call))
            if policy.fetches
            else None
        )

    def _begin_if_idle(self, engine: SimulatedEngine) -> None:
        if engine.busy_until is None:
            self._begin_step(engine)

    def _begin_step(self, engine: SimulatedEngine) -> None:
        engine.begin_step(self._clock.now)
        if engine.busy_until is not None:
            self._at(engine.busy_until, "step", self._place[engine.name])

    def _end_step(self, engine: SimulatedEngine) -> None:
        outputs, events = engine.end_step()
        for frontend, message in outputs.items():
            engine.remote.stats = message.stats
            for output in message.outputs:
                self._output(self._policies[frontend], engine, output)
            self._policies[frontend].reported(self._place[engine.name])
        for frontend, event in events:
            self._policies[frontend].cache_changed(self._place[engine.name], event)
        self._begin_step(engine)  # the next step starts before the frontends have read the outputs
        for frontend in outputs:
            self._send(frontend)

    def _output(self, policy: Policy, engine: SimulatedEngine, output: RequestOutput) -> None:
        assert not output.error, output.error
        _, request = self._requests[output.request_id]
        now, results = self._clock.now, self.results
        if output.num_cached_tokens is not None:
            results.first_tokens.append(now - request.arrived)
            results.prompt_tokens += request.num_tokens
            results.cached_tokens += output.num_cached_tokens
            engine.promised.subtract(split_chain(request.turn.chain))
            policy.begun(request, output)
        if output.finish_reason is not None:
            policy.left(request, self._place[engine.name])
            del self._requests[output.request_id]
            session = self._sessions[request.session]
            if request.place + 1 < len(session):
                pause = session[request.place + 1].pause
                self._at(now + pause, "arrive", request.session, request.place + 1)

    def _heartbeat(self) -> None:
        for place, engine in enumerate(self._engines):
            engine.remote.stats = engine.core.stats()
            for frontend, policy in self._policies.items():
                policy.reported(place)
                self._send(frontend)
        if self._events:
            self._at(self._clock.now + HEARTBEAT_SECONDS, "heartbeat")
