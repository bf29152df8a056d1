"""Both ends of the link for its tests: real ones, with a record of their events. See also bare_peers.py."""

import asyncio
import contextlib
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from kvasir.config.process_settings import LinkConfig
from kvasir.link.codec import CODEC, Codec
from kvasir.link.engine_end.engine_link import EngineIdentity, FrontendLost, Received
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.link_events import (
    CacheChanged,
    EngineChanged,
    EngineJoined,
    EngineLost,
    LinkEvent,
    OutputsReceived,
)
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    AddRequest,
    CacheEvents,
    EngineStats,
    FailedStep,
    Goodbye,
    Hello,
    Outputs,
    Ready,
    RequestOutput,
)
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir_contract.phases import Phase
from runtime.link.queued_link import QueuedLink

PATIENCE = 60.0
"""Seconds to wait for an event before the test fails: far more than it needs."""

STATS = EngineStats(waiting=0, running=1, kv_blocks_used=2, step=3)
READY = Ready(block_size=16, num_blocks=100, max_model_len=4096, max_num_seqs=64)
PARAMS = SamplingParams(max_tokens=8, seed=0)
Transport = tuple[str, Path | None, Path | None]
"""The frontend's address, its keys and the engines' keys."""

_ids = itertools.count()


def hello(incarnation: str, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "service": "uid",
        "rank": 0,
        "node": "node",
        "version": "0",
        "fingerprint": "model",
        "tokenizer_hash": "tokenizer",
        "phase_name": Phase.STARTING,
    }
    return Hello(incarnation=incarnation, **(fields | changes))


def request(request_id: str = "r") -> AddRequest:
    return AddRequest(request_id, 0, packed([1, 2, 3]), b"", PARAMS)


def outputs(request_id: str = "r", position: int = 0) -> Outputs:
    return Outputs([RequestOutput(request_id, 0, position, [7])], STATS)


# ---------------------------------------------------------------------------------------------- real frontends


class Recorder:
    link: FrontendLink
    """Set before the link starts."""

    def __init__(self) -> None:
        self.handle: Callable[[LinkEvent], None] = self._record
        """A test may replace it."""
        self.changes: list[tuple[str, EngineState]] = []
        self.outputs: list[tuple[str, Outputs]] = []
        self.cache: list[tuple[str, CacheEvents]] = []
        self.lost: list[tuple[str, str]] = []
        self.ran: dict[str, FailedStep | None] = {}
        """The step that failed, by the incarnation of a lost engine."""
        self._news = asyncio.Event()

    def take(self) -> None:
        """Act as the owner of a link that is woken."""
        while self.link.events:
            self.handle(self.link.events.popleft())

    def _record(self, event: LinkEvent) -> None:
        match event:
            case EngineJoined(engine) | EngineChanged(engine):
                self.changes.append((engine.incarnation, engine.state))
            case OutputsReceived(engine, message):
                self.outputs.append((engine.incarnation, message))
            case CacheChanged(engine, message):
                self.cache.append((engine.incarnation, message))
            case EngineLost(engine, reason, ran):
                self.lost.append((engine.incarnation, reason))
                self.ran[engine.incarnation] = ran
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Frontend:
    """A link and the events that came from it."""

    def __init__(self, link: FrontendLink, seen: Recorder) -> None:
        self.link = link
        self.seen = seen

    async def ready(self, *incarnations: str) -> None:
        engines = self.link.engines
        await self.seen.until(lambda: all(i in engines and engines[i].usable for i in incarnations))

    async def lost(self, incarnation: str) -> str:
        """Wait for the loss of an engine and return its reason."""
        await self.seen.until(lambda: any(i == incarnation for i, _ in self.seen.lost))
        return next(reason for i, reason in self.seen.lost if i == incarnation)

    async def ask(self, incarnation: str, request_id: str = "r") -> Outputs:
        assert self.link.send(incarnation, request(request_id))

        def answers() -> list[Outputs]:
            return [o for i, o in self.seen.outputs if i == incarnation and o.outputs[0].request_id == request_id]

        await self.seen.until(answers)
        return answers()[0]


@contextlib.asynccontextmanager
async def frontend(
    address: str, keys: Path | None = None, silence: float = 10.0, burst: int = 0, codec: Codec = CODEC
) -> AsyncIterator[Frontend]:
    seen = Recorder()
    config = LinkConfig(link=(address,), link_keys=str(keys) if keys else None, heartbeat_timeout=silence)
    link = FrontendLink(
        config,
        service="uid",
        fingerprint="model",
        tokenizer_hash="tokenizer",
        wake=lambda: seen.take(),
        burst=burst,
        codec=codec,
    )
    seen.link = link
    await link.start()
    try:
        yield Frontend(link, seen)
    finally:
        await link.close()


class Forwarder:
    """Another endpoint of a frontend on this machine, which can stop to answer."""

    def __init__(self, target: str) -> None:
        self._port = int(target.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Break the connections, and accept no more."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def forwarder(target: str) -> AsyncIterator[Forwarder]:
    forwards = Forwarder(target)
    await forwards.start()
    try:
        yield forwards
    finally:
        forwards.close()


# ------------------------------------------------------------------------------------------------ real engines


def identity(**changes: Any) -> EngineIdentity:
    number = next(_ids)
    fields: dict[str, Any] = {
        "incarnation": f"engine-{number}-test",
        "rank": number,
        "node": "node",
        "service": "uid",
        "version": "0",
        "fingerprint": "model",
        "tokenizer_hash": "tokenizer",
    }
    return EngineIdentity(**(fields | changes))


@contextlib.contextmanager
def engine(
    *addresses: str, keys: Path | None = None, silence: float = 10.0, ready: bool = True, **options: Any
) -> Iterator[QueuedLink]:
    config = LinkConfig(link=addresses, link_keys=str(keys) if keys else None, heartbeat_timeout=silence)
    link = QueuedLink(config, identity(), **options)
    if ready:
        link.announce_ready(READY)
    link.start()
    try:
        yield link
    finally:
        link.close(Goodbye())


def received(link: QueuedLink) -> Received:
    item = link.inbox.get(timeout=PATIENCE)
    assert isinstance(item, Received), item
    return item


def frontend_lost(link: QueuedLink) -> str:
    item = link.inbox.get(timeout=PATIENCE)
    assert isinstance(item, FrontendLost), item
    return item.frontend


async def serve_one(link: QueuedLink) -> Received:
    """Answer the next request with one token."""
    item = await asyncio.to_thread(received, link)
    assert isinstance(item.message, AddRequest), item
    link.send(item.frontend, outputs(item.message.request_id))
    return item


@contextlib.contextmanager
def engine_process(
    address: str, incarnation: str, keys: Path | None = None, silence: float = 10.0
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that answers every request with one token; see engine_process.py."""
    script = Path(__file__).with_name("engine_process.py")
    process = subprocess.Popen([sys.executable, script, address, incarnation, str(keys or ""), str(silence)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def socket_directory() -> Iterator[Path]:
    """A private directory with a short path: that of tmp_path may be too long for a socket."""
    path = Path(tempfile.mkdtemp(prefix="kl"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
