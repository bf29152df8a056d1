"""The frontend's end of the link: who is on it, what they say, and who is lost. Lives on the event loop.

Owned by AsyncLLM, which listens. Engines connect and introduce themselves; the link decides who is accepted, tells
the listener what they send, and finds out who is lost: a word of farewell, silence, a step that does not end, a
queue that is full, a connection that broke. An incarnation that was lost must say Hello again before it is used.

A ROUTER's monitor tells that a connection broke but not whose, so every engine is then sent a heartbeat:
ROUTER_MANDATORY makes the send to the one that has gone fail. A process that is killed is noticed within
milliseconds that way, a frozen one by its silence.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import zmq

from kvasir.config.settings import LinkConfig
from kvasir.link.frontend_end.link_sockets import LinkSockets
from kvasir.link.frontend_end.remote_engine import LinkListener, RemoteEngine, Terms
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    Abort,
    AddRequest,
    Call,
    Dead,
    Draining,
    FromEngine,
    Goodbye,
    Heartbeat,
    Hello,
    Outputs,
    ProtocolError,
    Ready,
    Refused,
    Result,
    Welcome,
    decode_from_engine,
    encode,
)
from kvasir.link.sockets import SeldomLog, heartbeat_interval, step_age_limit
from kvasir_contract.phases import Phase

__all__ = ["FrontendLink", "LinkListener", "RemoteEngine"]

PROBE_DELAYS: Final = (0.02, 0.2)
"""Seconds after which a broken connection is looked for again: its event may come before ZMQ has let go of it."""

FAREWELL: Final = 0.2
"""Seconds that the last messages get to leave when the link closes."""

_HEARTBEAT = encode(Heartbeat())
_SAW_DRAINING = encode(Heartbeat(saw_draining=True))

log = logging.getLogger(__name__)


class FrontendLink:
    """All engines of this frontend."""

    def __init__(
        self,
        config: LinkConfig,
        *,
        service: str,
        fingerprint: str,
        tokenizer_hash: str,
        listener: LinkListener,
        burst: int = 0,
    ) -> None:
        """`burst`: messages that `send` may be given for one engine at once, which then is not lost."""
        self.incarnation = f"frontend-{secrets.token_hex(4)}"
        self._config = config
        self._terms = Terms(service, fingerprint, tokenizer_hash)
        self._listener = listener
        self._burst = burst
        self._sockets: LinkSockets | None = None
        self._engines: dict[str, RemoteEngine] = {}
        self._strangers: set[str] = set()
        """Identities that were told since the last tick to introduce themselves."""
        self._interval = heartbeat_interval(config.heartbeat_timeout)
        self._step_age_limit = step_age_limit(config.heartbeat_timeout)
        self._seldom = SeldomLog(log)
        self._tick_due = 0.0
        self._tick_timer: asyncio.TimerHandle | None = None
        self._next_probe = 0.0
        self._probe_timers: list[asyncio.TimerHandle] = []

    @property
    def engines(self) -> Mapping[str, RemoteEngine]:
        """By incarnation, in the order they came."""
        return MappingProxyType(self._engines)

    @property
    def addresses(self) -> str:
        """Where engines connect to, the port of port 0 filled in; empty before `start`."""
        return self._sockets.address if self._sockets is not None else ""

    async def start(self) -> None:
        """Wait for engines from now on. Raises ConfigError for an address or keys that cannot be used."""
        self._loop = asyncio.get_running_loop()
        self._sockets = LinkSockets(self._config, self._on_frames, self._on_broken_connection, self._burst)
        self._plan_tick()
        encryption = "encrypted" if self._sockets.encrypted else "on this machine only"
        log.info("%s waits for engines on %s, %s", self.incarnation, self.addresses, encryption)

    async def close(self) -> None:
        """Say goodbye; the listener is told nothing more."""
        if self._sockets is None:
            return
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._cancel_probes()
        engines, self._engines = self._engines, {}
        for engine in engines.values():
            engine.lost = True
            self._post(engine.incarnation, encode(Goodbye()))
        sockets, self._sockets = self._sockets, None
        await sockets.close(FAREWELL)

    def send(self, incarnation: str, message: AddRequest | Abort | Call) -> bool:
        """Never blocks. False: the engine is lost, and the listener was told."""
        return incarnation in self._engines and self._send(incarnation, encode(message))

    def lose(self, incarnation: str, reason: str) -> None:
        """Trust the engine no more. The listener is told, and the engine: it drops its requests and starts over."""
        if incarnation in self._engines:
            self._lose(incarnation, reason)
            self._refuse(incarnation, reason, retry=True)

    # ----------------------------------------------------------------------------------------- from engines

    def _on_frames(self, frames: list[bytes]) -> None:
        incarnation = frames[0].decode(errors="replace")
        try:
            if len(frames) != 2:
                raise ProtocolError(f"a message of {len(frames) - 1} frames instead of one")
            message = decode_from_engine(frames[1])
        except ProtocolError as error:
            self._on_rubbish(incarnation, error)
            return
        engine = self._engines.get(incarnation)
        if isinstance(message, Hello):
            self._on_hello(incarnation, engine, message)
        elif engine is None:
            self._on_stranger(incarnation, message)
        else:
            engine.last_seen = self._loop.time()
            self._on_message(engine, message)

    def _on_message(self, engine: RemoteEngine, message: FromEngine) -> None:
        match message:
            case Outputs():
                engine.stats = message.stats
                self._listener.engine_outputs(engine, message)
            case Heartbeat():
                self._on_heartbeat(engine, message)
            case Ready():
                engine.ready = message
                engine.phase, engine.progress = Phase.READY, None
                log.info(
                    "%s is ready: %d KV blocks of %d", engine.incarnation, message.num_blocks, message.block_size
                )
                self._listener.engine_changed(engine)
            case Draining():
                engine.draining = True
                engine.phase = Phase.DRAINING
                self._listener.engine_changed(engine)
                self._send(engine.incarnation, _SAW_DRAINING)
            case Result():
                self._listener.engine_answered(engine, message)
            case Dead(reason):
                self._lose(engine.incarnation, f"it failed: {reason}")
            case Goodbye():
                self._lose(engine.incarnation, "it has shut down", logging.INFO)

    def _on_heartbeat(self, engine: RemoteEngine, message: Heartbeat) -> None:
        engine.step_age = message.step_age
        if message.step_age > self._step_age_limit:
            self.lose(engine.incarnation, f"its step has not ended for {message.step_age:.0f} s")
        elif message.stats is not None:
            engine.stats = message.stats
            self._listener.engine_changed(engine)

    def _on_hello(self, incarnation: str, engine: RemoteEngine | None, hello: Hello) -> None:
        reason = self._terms.refusal(hello)
        if hello.incarnation != incarnation:
            reason = f"the engine calls itself {hello.incarnation!r} and its connection {incarnation!r}"
        if reason is not None:
            self._lose(incarnation, reason)
            self._seldom.warning(f"LinkRefused: {incarnation} on {hello.node} is refused: {reason}")
            self._refuse(incarnation, reason, retry=False)
            return
        if engine is not None and engine.ready is not None:
            # A ready engine has no other cause to introduce itself than that it took this frontend for lost.
            self._lose(incarnation, "it lost its connection and dropped its requests")
            engine = None
        self._welcome(incarnation, engine, hello)

    def _welcome(self, incarnation: str, engine: RemoteEngine | None, hello: Hello) -> None:
        now = self._loop.time()
        is_new = engine is None
        if engine is None:
            engine = RemoteEngine(incarnation, hello.rank, hello.node, hello.phase, hello.progress, last_seen=now)
            self._engines[incarnation] = engine
            log.info("%s on %s (kvasir %s) is here: %s", incarnation, hello.node, hello.version, hello.phase)
        changed = is_new or (engine.phase, engine.progress) != (hello.phase, hello.progress)
        engine.phase, engine.progress, engine.last_seen = hello.phase, hello.progress, now
        engine.draining = hello.phase is Phase.DRAINING
        if changed:
            self._listener.engine_changed(engine)
        self._send(incarnation, encode(Welcome(PROTOCOL_VERSION, self.incarnation)))

    def _on_stranger(self, incarnation: str, message: FromEngine) -> None:
        if isinstance(message, Dead | Goodbye) or incarnation in self._strangers:
            return
        self._strangers.add(incarnation)
        self._refuse(incarnation, "this frontend does not know the engine, or took it for lost", retry=True)

    def _on_rubbish(self, incarnation: str, error: ProtocolError) -> None:
        self._seldom.warning(f"{incarnation} sends what is {error}", about=f"rubbish of {incarnation}")
        self._lose(incarnation, f"it sent what is {error}")

    # ---------------------------------------------------------------------------------------------- to engines

    def _send(self, incarnation: str, frame: bytes) -> bool:
        """Send to an engine that is on the link; it is lost where that fails."""
        if (failure := self._post(incarnation, frame)) is not None:
            self._lose(incarnation, failure)
        return failure is None

    def _post(self, incarnation: str, frame: bytes) -> str | None:
        """Why the message could not be sent, or None."""
        if self._sockets is None:
            return "the link is closed"
        try:
            self._sockets.send(incarnation, frame)
        except zmq.Again:
            return "it does not read: its queue is full"
        except zmq.ZMQError:
            return "its connection broke"
        return None

    def _refuse(self, incarnation: str, reason: str, *, retry: bool) -> None:
        self._post(incarnation, encode(Refused(reason, retry)))  # whoever cannot be told finds out by the silence

    # --------------------------------------------------------------------------------------------- who is lost

    def _lose(self, incarnation: str, reason: str, level: int = logging.WARNING) -> None:
        engine = self._engines.pop(incarnation, None)
        if engine is None:
            return
        engine.lost = True
        log.log(level, "%s is lost: %s", incarnation, reason)
        self._listener.engine_lost(engine, reason)

    def _plan_tick(self) -> None:
        self._tick_due = self._loop.time() + self._interval
        self._tick_timer = self._loop.call_at(self._tick_due, self._tick)

    def _tick(self) -> None:
        """Every second: who was silent for too long, and a heartbeat to the others."""
        now = self._loop.time()
        late = now - self._tick_due
        self._plan_tick()
        self._strangers.clear()
        timeout = self._config.heartbeat_timeout
        for engine in list(self._engines.values()):
            if late > self._interval:
                # This process stood still itself: what the engines said meanwhile is not read yet.
                engine.last_seen += late
            if now - engine.last_seen > timeout:
                self._lose(engine.incarnation, f"it was silent for {now - engine.last_seen:.1f} s")
        self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        for incarnation in list(self._engines):
            self._send(incarnation, _HEARTBEAT)

    def _on_broken_connection(self) -> None:
        now = self._loop.time()
        if now >= self._next_probe:  # of many events at once the first is probed for now, the others soon
            self._next_probe = now + PROBE_DELAYS[0]
            self._probe()
        self._cancel_probes()
        self._probe_timers = [self._loop.call_later(delay, self._probe) for delay in PROBE_DELAYS]

    def _probe(self) -> None:
        """Find the engines whose connection is gone, after what they sent before."""
        if self._sockets is None:
            return
        if self._sockets.read():
            self._send_heartbeats()
        else:
            self._loop.call_soon(self._probe)

    def _cancel_probes(self) -> None:
        for timer in self._probe_timers:
            timer.cancel()
        self._probe_timers.clear()
