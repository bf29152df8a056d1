"""The thread that owns the sockets to all frontends.

Each frontend has a socket of its own: one DEALER would send its messages round robin.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.link.codec import CODEC, Codec
from kvasir.link.engine_end.announced_engine import AnnouncedEngine, EngineIdentity
from kvasir.link.engine_end.frontend_connection import (
    CacheEventsWanted,
    DrainSettled,
    FrontendLost,
    LinkEvent,
    Received,
)
from kvasir.link.engine_end.frontends import Frontends
from kvasir.link.protocol import (
    AdaptersHeld,
    CacheEvents,
    Dead,
    EngineStats,
    FailedStep,
    Goodbye,
    Outputs,
    Progress,
    Ready,
    Result,
)
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import LinkAddress, look_up, parse_address, private_directory, require_keys
from kvasir.wire.death_watch import DeathWatch
from kvasir.wire.keys import load_engine_keys
from kvasir.wire.peer import LinkProblem
from kvasir.wire.reactor import Reactor
from kvasir_contract.endpoints import ANY_HOST
from kvasir_contract.phases import Phase

LOOKUP_INTERVAL: Final = 3.0  # seconds


class Resolver:
    def __init__(
        self,
        addresses: Iterable[LinkAddress],
        report: Callable[[LinkAddress, frozenset[str]], None],
        lookup: Callable[[str], frozenset[str]] = look_up,
        interval: float = LOOKUP_INTERVAL,
    ) -> None:
        # `report` is called in the resolver's thread, for each change.
        self._addresses = list(addresses)
        self._report = report
        self._lookup = lookup
        self._interval = interval
        self._known: dict[LinkAddress, frozenset[str]] = {}
        self._stopped = threading.Event()
        self._seldom = SeldomLog(log)
        self._thread = threading.Thread(target=self._run, name="link-resolver", daemon=True)

    def start(self) -> None:
        if self._addresses:
            self._thread.start()

    def stop(self) -> None:
        """Stop without waiting: a look-up can take long."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for address in self._addresses:
                self._look_up(address)
            self._stopped.wait(self._interval)

    def _look_up(self, address: LinkAddress) -> None:
        try:
            found = self._lookup(address.host)
        except OSError as error:
            self._seldom.warning(
                f"{address.text}: looking up {address.host} failed: {error}; another attempt follows"
            )
            return  # the name server fails: keep the known addresses
        if not found:
            self._seldom.warning(f"{address.text}: {address.host} has no address yet; another attempt follows")
        if found != self._known.get(address) and not self._stopped.is_set():
            self._known[address] = found
            self._report(address, found)


__all__ = [
    "CacheEventsWanted",
    "DrainSettled",
    "EngineIdentity",
    "EngineLink",
    "FrontendLost",
    "LinkEvent",
    "Received",
    "new_incarnation",
]

CLOSE_TIMEOUT: Final = 2.0

log = logging.getLogger(__name__)


def new_incarnation(rank: int) -> str:
    return f"engine-{rank}-{secrets.token_hex(4)}"


class EngineLink:
    """Any thread may call the methods; only `close` waits."""

    def __init__(
        self,
        config: LinkConfig,
        identity: EngineIdentity,
        deliver: Callable[[LinkEvent], None],
        delivered: Callable[[], None] = lambda: None,
        *,
        step_limit: Callable[[], float] | None = None,
        crashed: FailedStep | None = None,
        running: Callable[[], FailedStep | None] = lambda: None,
        lookup: Callable[[str], frozenset[str]] = look_up,
        lookup_interval: float = LOOKUP_INTERVAL,
        codec: Codec = CODEC,
        death_watch: DeathWatch | None = None,
    ) -> None:
        """`deliver` gets each event, in order, in the link's thread; `delivered` is called after each batch.

        For the other callbacks see AnnouncedEngine. `death_watch` is closed after the link. Raises ConfigError for
        addresses or keys that cannot be used.
        """
        keys = load_engine_keys(config.link_keys) if config.link_keys else None
        addresses = [_engine_address(text, keys is not None) for text in config.link]
        self._reactor = Reactor(death_watch)
        timeout = config.heartbeat_timeout
        self._engine = AnnouncedEngine(
            identity, codec.version, timeout, step_limit, crashed=crashed, running=running
        )
        self._frontends = Frontends(self._engine, keys, timeout, self._reactor, deliver, codec)
        self._delivered = delivered
        names = [address for address in addresses if not address.is_ipc and address.ip is None]
        self._resolver = Resolver(names, self._on_lookup, lookup, lookup_interval)
        for address in addresses:
            if address not in names:
                self._frontends.set_endpoints(address, frozenset({address.endpoint()}))
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    @property
    def problem(self) -> LinkProblem | None:
        """Return why no frontend has accepted this engine; None if one has, or before an attempt."""
        return self._frontends.problem

    @property
    def accepted(self) -> tuple[str, ...]:
        return self._frontends.accepted

    @property
    def unknown_messages(self) -> int:
        return self._frontends.unknown_messages

    def start(self) -> None:
        self._thread.start()
        self._resolver.start()

    def set_phase(self, phase: Phase, progress: Progress | None = None) -> None:
        self._reactor.post(partial(self._frontends.show_phase, phase, progress))

    def announce_ready(self, ready: Ready) -> None:
        self._reactor.post(partial(self._frontends.announce_ready, ready))

    def set_load(self, stats: EngineStats, busy: bool) -> None:
        """Call this before each step, and with `busy` False when idle. A counter that stands still means a stuck
        step.
        """
        self._engine.set_load(stats, busy)

    def send(self, frontend: str, message: Outputs | CacheEvents | Result) -> None:
        """Send soon, unless the frontend is lost. Do not change `message` later."""
        self._reactor.post(partial(self._frontends.send, frontend, message))

    def show_adapters(self, held: AdaptersHeld) -> None:
        self._reactor.post(partial(self._frontends.show_adapters, held))

    def drain(self, seconds: float = 0.0) -> None:
        """Send Draining. DrainSettled follows after all earlier requests."""
        self._reactor.post(partial(self._frontends.drain, seconds))

    def close(self, last: Goodbye | Dead) -> None:
        """Send all posted messages and this last one, within two seconds."""
        self._resolver.stop()
        if self._thread.is_alive():
            self._reactor.post(partial(self._stop, last))
            self._thread.join(CLOSE_TIMEOUT)
        elif self._thread.ident is None:  # never started
            self._reactor.close()

    def _stop(self, last: Goodbye | Dead) -> None:
        self._frontends.close(last)
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._frontends.work()
                self._delivered()
                self._reactor.wait(self._frontends.next_due() - time.monotonic())
            except Exception:
                # Without this thread the engine would receive nothing; the pause prevents a busy loop.
                log.exception("an error on the link; it goes on")
                time.sleep(1)
        self._delivered()
        self._reactor.close()

    def _on_lookup(self, address: LinkAddress, ips: frozenset[str]) -> None:
        endpoints = frozenset(address.endpoint(ip) for ip in ips)
        self._reactor.post(partial(self._frontends.set_endpoints, address, endpoints))


def _engine_address(text: str, has_keys: bool) -> LinkAddress:
    address = parse_address(text)
    if address.is_ipc:
        private_directory(address)
    elif address.port == 0 or address.host == ANY_HOST:
        raise ConfigError(
            f"--link {text}: an engine connects to a host and a port, for example tcp://10.0.0.7:5557"
        )
    require_keys(address, has_keys)
    return address
