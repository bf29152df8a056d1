"""All connections of an engine, and the messages to them.

All but `problem`, `accepted` and `unknown_messages` runs in the link's thread.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from kvasir.link.codec import CODEC, Codec
from kvasir.link.engine_end.announced_engine import AnnouncedEngine
from kvasir.link.engine_end.frontend_connection import (
    CacheEventsWanted,
    DrainSettled,
    FrontendConnection,
    FrontendLost,
    LinkEvent,
    Received,
)
from kvasir.link.protocol import (
    Abort,
    AdaptersHeld,
    AddRequest,
    CacheEvents,
    Call,
    Dead,
    EngineStats,
    FinishReason,
    FromEngine,
    Goodbye,
    Outputs,
    Progress,
    Ready,
    RefusalKind,
    RequestOutput,
    Result,
    StartWave,
)
from kvasir.wire.address import LinkAddress, parse_address
from kvasir.wire.heartbeats import HeartbeatClock
from kvasir.wire.keys import LinkKeys
from kvasir.wire.peer import LinkProblem, PeerState
from kvasir.wire.reactor import Reactor
from kvasir_contract.phases import Phase

FAREWELL: Final = 0.5  # seconds for the last messages

_NO_STATS = EngineStats(waiting=0, running=0, kv_blocks_used=0, step=0)

log = logging.getLogger(__name__)


class Frontends:
    def __init__(
        self,
        engine: AnnouncedEngine,
        keys: LinkKeys | None,
        timeout: float,
        reactor: Reactor,
        deliver: Callable[[LinkEvent], None],
        codec: Codec = CODEC,
    ) -> None:
        self._engine = engine
        self._keys = keys
        self._timeout = timeout
        self._reactor = reactor
        self._deliver = deliver
        self._codec = codec
        self._unknown_messages = 0  # of closed connections
        self._addresses: dict[LinkAddress, frozenset[str]] = {}
        self._twins: dict[str, str] = {}  # by endpoint: another one of the same frontend, used instead
        self._connections: dict[str, FrontendConnection] = {}
        self._by_frontend: dict[str, FrontendConnection] = {}
        self._unaware: set[str] = set()  # have not answered Draining: they may still send requests
        self._clock = HeartbeatClock(timeout, time.monotonic())

    # -------------------------------------------------------------------------------------- the thread's turn

    def next_due(self) -> float:
        """Return when to call `work` again at the latest."""
        closed = [c.peer for c in self._connections.values() if c.wanted and c.peer.state is PeerState.CLOSED]
        retries = [peer.retry_at for peer in closed]
        return min([self._clock.due, *retries])

    def work(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.peer.state is not PeerState.CLOSED:
                continue
            if not connection.wanted:
                del self._connections[connection.endpoint]
                self._unknown_messages += connection.agreement.skipped
                self._follow_addresses()  # its twin may lead to the frontend now
            elif connection.peer.retry_at <= now:
                connection.open()
        if now >= self._clock.due:
            self._tick(now)

    def _tick(self, now: float) -> None:
        late = self._clock.tick(now)
        if self._engine.has_news:
            self._tell_phase()
        for connection in list(self._connections.values()):
            connection.peer.tick(now, late)

    # --------------------------------------------------------------------------------------- from other threads

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the IP addresses, or socket paths, of frontends that have accepted this engine."""
        connections = list(self._connections.values())
        welcomed = [c.endpoint for c in connections if c.peer.state is PeerState.AGREED]
        return tuple(address.ip or address.path or address.host for address in map(parse_address, welcomed))

    @property
    def unknown_messages(self) -> int:
        connections = list(self._connections.values())
        return self._unknown_messages + sum(connection.agreement.skipped for connection in connections)

    @property
    def problem(self) -> LinkProblem | None:
        # a rejection comes before silence
        connections = list(self._connections.values())
        if any(connection.peer.state is PeerState.AGREED for connection in connections):
            return None
        problems = [connection.peer.problem for connection in connections if connection.peer.problem is not None]
        return max(problems, key=lambda problem: problem.refused, default=None)

    # ---------------------------------------------------------------------------------------------- commands

    def set_endpoints(self, address: LinkAddress, endpoints: frozenset[str]) -> None:
        # A connected frontend stays until it leaves: while it drains, it is not in the DNS and still serves.
        self._addresses[address] = endpoints
        self._follow_addresses()

    def _follow_addresses(self) -> None:
        known = frozenset().union(*self._addresses.values())
        self._twins = {
            twin: first for twin, first in self._twins.items() if twin in known and first in self._connections
        }
        wanted = known - self._twins.keys()
        for endpoint in wanted - self._connections.keys():
            # A socket in a private directory needs no encryption, and the frontend has none there.
            keys = None if endpoint.startswith("ipc:") else self._keys
            self._connections[endpoint] = FrontendConnection(
                endpoint, self._engine, keys, self._timeout, self._reactor, self, self._codec
            )
        for connection in self._connections.values():
            connection.wanted = connection.endpoint in wanted
            if not connection.wanted and connection.peer.state is not PeerState.AGREED:
                connection.peer.close()

    def show_phase(self, phase: Phase, progress: Progress | None) -> None:
        # Progress within a phase is sent once a second.
        if self._engine.set_phase(phase, progress):
            self._tell_phase()

    def announce_ready(self, ready: Ready) -> None:
        self._engine.set_ready(ready)
        self._broadcast(ready)

    def show_adapters(self, held: AdaptersHeld) -> None:
        self._engine.adapters = held
        if self._engine.is_ready:
            self._broadcast(held)

    def send(self, frontend: str, message: Outputs | CacheEvents | Result) -> None:
        connection = self._by_frontend.get(frontend)
        if connection is not None:
            connection.show(message)

    def drain(self, seconds: float) -> None:
        draining = self._engine.set_draining(seconds)
        self._unaware = set(self._by_frontend)
        self._broadcast(draining)
        self._check_settled()

    def close(self, last: Goodbye | Dead) -> None:
        self._broadcast(last)
        for connection in self._connections.values():
            connection.peer.close(FAREWELL)
        self._connections.clear()

    # -------------------------------------------------------------------------------------- from the connections

    @property
    def must_probe(self) -> bool:
        return bool(self._by_frontend)

    def shows_load(self, connection: FrontendConnection) -> bool:
        # the frontend that is on the link the longest
        return next(iter(self._by_frontend.values()), None) is connection

    def probed(self, connection: FrontendConnection, frontend: str) -> bool:
        # A second connection would end the one with the live requests.
        used = self._by_frontend.get(frontend)
        if used is None:
            return True
        self._use_instead(used, connection)
        return False

    def failed(self, connection: FrontendConnection) -> None:
        # The frontend may still be reached by its other endpoints.
        twins = [twin for twin, first in self._twins.items() if first == connection.endpoint]
        for twin in twins:
            del self._twins[twin]
        if twins:
            self._follow_addresses()

    def welcomed(self, connection: FrontendConnection, frontend: str) -> None:
        self._by_frontend[frontend] = connection
        for other in list(self._connections.values()):
            if other is not connection and other.wanted and other.last_frontend == frontend:
                # Each would take the engine's name from the other, for ever. The last one has it now.
                self._use_instead(connection, other)

    def _use_instead(self, used: FrontendConnection, twin: FrontendConnection) -> None:
        log.warning("%s and %s are one frontend: only the first is used", used.endpoint, twin.endpoint)
        self._twins[twin.endpoint] = used.endpoint
        twin.wanted = False
        twin.peer.drop("it has another address that is used")

    def wants_cache_events(self, frontend: str) -> None:
        self._deliver(CacheEventsWanted(frontend))

    def lost(self, connection: FrontendConnection, frontend: str) -> None:
        if self._by_frontend.get(frontend) is connection:
            del self._by_frontend[frontend]
        self._deliver(FrontendLost(frontend))
        self.saw_draining(frontend)

    def saw_draining(self, frontend: str) -> None:
        if frontend in self._unaware:
            self._unaware.remove(frontend)
            self._check_settled()

    def received(
        self, connection: FrontendConnection, frontend: str, message: AddRequest | Abort | Call | StartWave
    ) -> None:
        # The busy loop takes requests only when the engine is ready.
        if not self._engine.is_ready and isinstance(message, AddRequest):
            connection.show(Outputs([_not_ready(message, self._engine.phase)], _NO_STATS))
        else:
            self._deliver(Received(frontend, message))

    # ------------------------------------------------------------------------------------------------- parts

    def _check_settled(self) -> None:
        if not self._unaware:
            self._deliver(DrainSettled())

    def _broadcast(self, message: FromEngine) -> None:
        for connection in list(self._by_frontend.values()):
            connection.show(message)

    def _tell_phase(self) -> None:
        # Also without an answer: the Welcome may be for an earlier Hello.
        for connection in list(self._connections.values()):
            if connection.peer.state in (PeerState.GREETING, PeerState.AGREED) and (
                hello := self._engine.greeting()
            ):
                connection.show(hello)


def _not_ready(message: AddRequest, phase: Phase) -> RequestOutput:
    return RequestOutput(
        request_id=message.request_id,
        attempt=message.attempt,
        position=message.num_output_tokens,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=f"the engine takes no requests yet, it is {phase}",
        refusal=RefusalKind.UNAVAILABLE,
    )
