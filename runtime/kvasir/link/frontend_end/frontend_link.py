"""The frontend's end of the link: its engines, their messages and losses."""

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kvasir.config.process_settings import LinkConfig
from kvasir.link.codec import CODEC, Agreement, Codec, UnknownMessage, encode
from kvasir.link.frontend_end.link_events import (
    CacheChanged,
    CallAnswered,
    EngineChanged,
    EngineJoined,
    EngineLost,
    LinkEvent,
    OutputsReceived,
)
from kvasir.link.frontend_end.link_sockets import LinkSockets
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine, state_of
from kvasir.link.frontend_end.terms import Terms
from kvasir.link.protocol import (
    Abort,
    AdaptersHeld,
    AddRequest,
    CacheEvents,
    Call,
    Dead,
    Draining,
    FailedStep,
    FromEngine,
    Goodbye,
    Heartbeat,
    Hello,
    Outputs,
    ProtocolError,
    Ready,
    Refused,
    Result,
    StartWave,
    Welcome,
)
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.heartbeats import HeartbeatClock, silent, step_age_limit

LINGER_SECONDS: Final = 0.2

_HEARTBEAT = encode(Heartbeat())
_SAW_DRAINING = encode(Heartbeat(saw_draining=True))

log = logging.getLogger(__name__)


class FrontendLink:
    """The owner takes `events` from the left. `wake` is called when some wait, never within `send` or `lose`."""

    def __init__(
        self,
        config: LinkConfig,
        *,
        service: str,
        fingerprint: str,
        tokenizer_hash: str,
        wake: Callable[[], None],
        burst: int = 0,
        codec: Codec = CODEC,
    ) -> None:
        # `burst`: messages that `send` may get for one engine at once without losing it
        self.incarnation = f"frontend-{secrets.token_hex(4)}"
        self.events: deque[LinkEvent] = deque()
        self._config = config
        self._terms = Terms(service, fingerprint, tokenizer_hash)
        self._wake = wake
        self._burst = burst
        self._codec = codec
        self._sockets: LinkSockets | None = None
        self._engines: dict[str, RemoteEngine] = {}
        # a live view by incarnation, oldest first
        self.engines: Mapping[str, RemoteEngine] = MappingProxyType(self._engines)
        self._asked: set[str] = set()  # unknown incarnations, asked for a Hello since the last tick
        self._step_age_limit = step_age_limit(config.heartbeat_timeout)
        self._seldom = SeldomLog(log)

    @property
    def addresses(self) -> str:
        """Return the address for engines, with the real port instead of 0; "" before `start`."""
        return self._sockets.address if self._sockets is not None else ""

    async def start(self) -> None:
        """Raises ConfigError for an address or keys that cannot be used."""
        self._loop = asyncio.get_running_loop()
        self._sockets = LinkSockets(self._config, self._on_frames, self._find_broken, self._burst)
        self._clock = HeartbeatClock(self._config.heartbeat_timeout, self._loop.time())
        self._timer = self._loop.call_at(self._clock.due, self._tick)
        encryption = "encrypted" if self._sockets.encrypted else "on this machine only"
        log.info("%s waits for engines on %s, %s", self.incarnation, self.addresses, encryption)

    async def close(self) -> None:
        if self._sockets is None:
            return
        self._timer.cancel()
        for engine in self._engines.values():
            engine.state = EngineState.LOST
            self._post(engine.incarnation, encode(Goodbye()))
        self._engines.clear()
        self.events.clear()
        sockets, self._sockets = self._sockets, None
        await sockets.close(LINGER_SECONDS)

    def send(self, incarnation: str, message: AddRequest | Abort | Call | StartWave) -> bool:
        """Send without blocking. Return False if the engine is lost. Its version must understand the message."""
        engine = self._engines.get(incarnation)
        return engine is not None and self._send(engine, encode(message))

    def lose(self, incarnation: str, reason: str) -> None:
        """Take the engine off the link. It is asked to drop its requests and to start over."""
        engine = self._engines.get(incarnation)
        if engine is not None:
            self._lose_alive(engine, reason, engine.no_step)

    # ----------------------------------------------------------------------------------------- from engines

    def _on_frames(self, frames: list[bytes]) -> None:
        incarnation = frames[0].decode(errors="replace")
        try:
            if len(frames) != 2:
                raise ProtocolError(f"a message of {len(frames) - 1} frames instead of one")
            message = self._codec.decode_from_engine(frames[1])
        except ProtocolError as error:
            self._on_malformed(incarnation, error)
        else:
            engine = self._engines.get(incarnation)
            if isinstance(message, Hello):
                self._on_hello(incarnation, engine, message)
            elif engine is None:
                self._on_unknown_engine(incarnation, message)
            else:
                engine.last_seen = self._loop.time()
                self._on_message(engine, message)
        self._wake_owner()

    def _on_message(self, engine: RemoteEngine, message: FromEngine | UnknownMessage) -> None:
        match message:
            case Outputs():
                engine.stats = message.stats
                self.events.append(OutputsReceived(engine, message))
            case CacheEvents():
                self.events.append(CacheChanged(engine, message))
            case AdaptersHeld(adapters):
                engine.adapters = frozenset(adapter.digest for adapter in adapters)
                self.events.append(EngineChanged(engine))
            case Heartbeat():
                self._on_heartbeat(engine, message)
            case Ready():
                self._on_ready(engine, message)
            case Draining(seconds):
                engine.state, engine.drain_seconds = EngineState.DRAINING, seconds
                self.events.append(EngineChanged(engine))
                self._send(engine, _SAW_DRAINING)
            case Result():
                self.events.append(CallAnswered(engine, message))
            case Dead(reason, crashed):
                self._lose(engine, f"it failed: {reason}", crashed)
            case Goodbye():
                self._lose(engine, "it has shut down", engine.no_step, logging.INFO)
            case UnknownMessage():
                engine.agreement.skip(engine.incarnation, message)

    def _on_ready(self, engine: RemoteEngine, ready: Ready) -> None:
        engine.capacity, engine.progress = ready, None
        if engine.state is not EngineState.DRAINING:
            engine.state = EngineState.READY
        log.info("%s is ready: %d KV blocks of %d tokens", engine.incarnation, ready.num_blocks, ready.block_size)
        self.events.append(EngineChanged(engine))

    def _on_heartbeat(self, engine: RemoteEngine, message: Heartbeat) -> None:
        engine.step_age = message.step_age
        changed = message.stats is not None or message.shows_load != engine.shows_load
        engine.shows_load = message.shows_load
        if message.step_age > min(message.step_limit or math.inf, self._step_age_limit):
            self._lose_alive(engine, f"its step has not ended for {message.step_age:.0f} s", message.stuck)
        elif changed:
            engine.stats = message.stats or engine.stats
            self.events.append(EngineChanged(engine))

    def _on_hello(self, incarnation: str, engine: RemoteEngine | None, hello: Hello) -> None:
        reason = self._terms.refusal(hello, incarnation)
        if reason is not None:
            if engine is not None:
                self._lose(engine, reason, engine.no_step)
            self._seldom.warning(f"LinkRefused: {incarnation} on {hello.node} is refused: {reason}")
            self._refuse(incarnation, reason, retry=False)
            return
        if engine is not None and engine.capacity is not None:
            # A ready engine sends Hello only after it took this frontend for lost.
            self._lose(engine, "it lost its connection and dropped its requests", engine.no_step)
            engine = None
        self._welcome(incarnation, engine, hello)

    def _welcome(self, incarnation: str, engine: RemoteEngine | None, hello: Hello) -> None:
        state, now = state_of(hello.phase), self._loop.time()
        if engine is None:
            engine = RemoteEngine(incarnation, hello.rank, hello.node, state, hello.progress, last_seen=now)
            engine.agreement, engine.crashed = Agreement(self._codec, hello.protocol), hello.crashed
            self._engines[incarnation] = engine
            log.info("%s on %s (kvasir %s) joined: %s", incarnation, hello.node, hello.version, hello.phase)
            self.events.append(EngineJoined(engine))
        elif (engine.state, engine.progress) != (state, hello.progress):
            self.events.append(EngineChanged(engine))
        engine.state, engine.progress, engine.last_seen = state, hello.progress, now
        self._send(engine, encode(Welcome(self._codec.version, self.incarnation, cache_events=True)))

    def _on_unknown_engine(self, incarnation: str, message: FromEngine | UnknownMessage) -> None:
        # once per tick
        if isinstance(message, Dead | Goodbye) or incarnation in self._asked:
            return
        self._asked.add(incarnation)
        self._refuse(incarnation, "this frontend does not know the engine, or took it for lost", retry=True)

    def _on_malformed(self, incarnation: str, error: ProtocolError) -> None:
        self._seldom.warning(f"{incarnation} sent {error}", about=f"malformed frames of {incarnation}")
        engine = self._engines.get(incarnation)
        if engine is not None:
            self._lose(engine, f"it sent {error}", engine.no_step)

    # ---------------------------------------------------------------------------------------------- to engines

    def _send(self, engine: RemoteEngine, frame: bytes) -> bool:
        if (failure := self._post(engine.incarnation, frame)) is not None:
            self._lose(engine, failure)
        return failure is None

    def _post(self, incarnation: str, frame: bytes) -> str | None:
        return "the link is closed" if self._sockets is None else self._sockets.send(incarnation, frame)

    def _refuse(self, incarnation: str, reason: str, *, retry: bool) -> None:
        # An engine that does not get it notices the silence.
        self._post(incarnation, encode(Refused(reason, retry, self.incarnation)))

    # -------------------------------------------------------------------------------------------------- losses

    def _lose_alive(self, engine: RemoteEngine, reason: str, ran: FailedStep | None) -> None:
        self._lose(engine, reason, ran)
        self._refuse(engine.incarnation, reason, retry=True)

    def _lose(
        self, engine: RemoteEngine, reason: str, ran: FailedStep | None = None, level: int = logging.WARNING
    ) -> None:
        if engine.state is EngineState.LOST:
            return
        engine.state = EngineState.LOST
        del self._engines[engine.incarnation]
        log.log(level, "%s is lost: %s", engine.incarnation, reason)
        self.events.append(EngineLost(engine, reason, ran))
        self._loop.call_soon(self._wake_owner)

    def _tick(self) -> None:
        now = self._loop.time()
        late = self._clock.tick(now)
        self._timer = self._loop.call_at(self._clock.due, self._tick)
        self._asked.clear()
        for engine, reason in silent(list(self._engines.values()), self._config.heartbeat_timeout, now, late):
            self._lose(engine, reason)
        self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        for engine in list(self._engines.values()):
            self._send(engine, _HEARTBEAT)

    def _find_broken(self) -> None:
        # An ended engine's messages are read first.
        if self._sockets is None:
            return
        if self._sockets.read():
            self._send_heartbeats()
        else:
            self._loop.call_soon(self._find_broken)

    def _wake_owner(self) -> None:
        if self.events:
            self._wake()
