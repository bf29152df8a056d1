"""Version N of the protocol against version N-1, in both directions over real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvasir.link.codec import CODEC, Agreement, Codec, UnknownMessage, encode
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    Abort,
    AddRequest,
    CacheEvents,
    Call,
    Dead,
    Draining,
    FinishReason,
    FromEngine,
    FromFrontend,
    Goodbye,
    Heartbeat,
    Hello,
    Outputs,
    ProtocolError,
    Ready,
    Refused,
    RequestOutput,
    Result,
    Since,
    StartWave,
    Welcome,
)
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from runtime.link.peers import (
    PARAMS,
    PATIENCE,
    STATS,
    Frontend,
    engine,
    frontend,
    outputs,
    received,
    request,
    serve_one,
)
from runtime.link.queued_link import QueuedLink

# ------------------------------------------------------------------------------------------- version N, made here


class NextHeartbeat(Heartbeat, frozen=True, tag="Heartbeat"):
    clock: float = 0.0
    """A peer may ignore it."""


class NextAddRequest(AddRequest, frozen=True, tag="AddRequest"):
    lora: str = ""
    """An engine must understand it."""


class BlocksChanged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From an engine."""

    sequence: int


class Sleep(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From a frontend."""

    level: int


def later(value: object) -> Any:
    """Return a value that the types of this version do not have, for functions that take those of this version."""
    return value


class Next(Codec):
    """The version after this one; `seen` are the messages that were read."""

    def __init__(self, since: Since) -> None:
        super().__init__(
            PROTOCOL_VERSION + 1,
            Hello
            | Ready
            | Outputs
            | CacheEvents
            | Result
            | Draining
            | Dead
            | NextHeartbeat
            | Goodbye
            | BlocksChanged,
            Welcome | Refused | NextAddRequest | Abort | Call | StartWave | NextHeartbeat | Goodbye | Sleep,
            since,
        )
        self.seen: list[object] = []

    def decode_from_engine(self, frame: bytes | memoryview) -> FromEngine | UnknownMessage:
        message = super().decode_from_engine(frame)
        self.seen.append(message)
        return message

    def decode_from_frontend(self, frame: bytes | memoryview) -> FromFrontend | UnknownMessage:
        message = super().decode_from_frontend(frame)
        self.seen.append(message)
        return message


SINCE = Since(
    {BlocksChanged: PROTOCOL_VERSION + 1, Sleep: PROTOCOL_VERSION + 1},
    {(NextAddRequest, "lora"): PROTOCOL_VERSION + 1},
)
CARELESS = Since()
"""A message of a release that sends everything to everybody: its peers must survive it."""


def next_request(request_id: str = "r", lora: str = "") -> NextAddRequest:
    return NextAddRequest(request_id, 0, packed([1, 2, 3]), b"", PARAMS, lora=lora)


@asynccontextmanager
async def linked(
    sockets: Path, engines: Codec, frontends: Codec
) -> AsyncIterator[tuple[Frontend, RemoteEngine, QueuedLink]]:
    """A frontend and an engine of these versions; gives the frontend, its RemoteEngine and the engine's link."""
    address = f"ipc://{sockets}/link"
    async with frontend(address, codec=frontends) as f:
        with engine(address, codec=engines) as link:
            await f.ready(link.incarnation)
            yield f, f.link.engines[link.incarnation], link


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "a message that this version does not have" in line]


# -------------------------------------------------------------------------------------- engine N, frontend N-1


async def test_a_newer_engine_serves_an_older_frontend(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with linked(sockets, Next(CARELESS), CODEC) as (f, remote, link):
        assert remote.agreement.version == PROTOCOL_VERSION
        assert f.link.send(link.incarnation, request("one"))
        peer = (await asyncio.to_thread(received, link)).frontend
        for sequence in range(3):
            link.send(peer, later(BlocksChanged(sequence)))  # a new message
        link.send(peer, later(NextHeartbeat(STATS, 0.25, clock=5.0)))  # a new field
        link.send(peer, Outputs([RequestOutput("one", 0, 0, [7], later("repetition"))], STATS))  # a new enum value
        await f.seen.until(lambda: f.seen.outputs)
        [(_, message)] = f.seen.outputs
        assert message.outputs[0].finish_reason is FinishReason.STOP
        assert remote.agreement.skipped == 3
        assert not f.seen.lost
    [line] = warnings(caplog)
    assert line.startswith(f"{link.incarnation} sent a message that this version does not have: BlocksChanged.")


async def test_an_unknown_phase_of_a_newer_engine_counts_as_starting(sockets: Path) -> None:
    address = f"ipc://{sockets}/link"
    async with frontend(address) as f:
        with engine(address, codec=Next(SINCE), ready=False) as link:
            link.set_phase(later("Sleeping"))
            await f.seen.until(lambda: f.seen.changes)
            assert f.link.engines[link.incarnation].state is EngineState.STARTING
            assert not f.link.engines[link.incarnation].usable


async def test_a_newer_engine_sends_nothing_new_to_an_older_frontend(
    sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(sockets, Next(SINCE), CODEC) as (f, remote, link):
        serving = asyncio.create_task(serve_one(link))
        await f.ask(link.incarnation, "one")
        peer = (await serving).frontend
        link.send(peer, later(BlocksChanged(1)))
        link.send(peer, outputs("after"))
        await f.seen.until(lambda: len(f.seen.outputs) == 2)
        assert remote.agreement.skipped == 0
    assert not warnings(caplog)


# -------------------------------------------------------------------------------------- engine N-1, frontend N


async def test_an_older_engine_serves_a_newer_frontend(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with linked(sockets, CODEC, Next(CARELESS)) as (f, remote, link):
        assert remote.agreement.version == PROTOCOL_VERSION
        for level in range(3):
            assert f.link.send(link.incarnation, later(Sleep(level)))  # a new message
        assert f.link.send(link.incarnation, later(NextHeartbeat(clock=5.0)))  # a new field
        assert f.link.send(link.incarnation, next_request("one"))  # a new field that is not used
        item = await asyncio.to_thread(received, link)
        assert item.message == request("one")
        link.send(item.frontend, outputs("one"))
        await f.seen.until(lambda: f.seen.outputs)
        assert link.unknown_messages == 3
        assert not f.seen.lost
    [line] = warnings(caplog)
    assert line.startswith(f"frontend {item.frontend} sent a message that this version does not have: Sleep.")


async def test_newer_frontend_agrees_on_the_version_of_the_engine(sockets: Path) -> None:
    async with linked(sockets, CODEC, Next(SINCE)) as (_, remote, _):
        assert remote.agreement.understands(next_request())
        assert not remote.agreement.understands(next_request(lora="adapter"))
        assert not remote.agreement.understands(later(Sleep(1)))


# ------------------------------------------------------------------------------------------------ both the same


async def test_two_newer_ends_use_what_is_new(sockets: Path) -> None:
    old, new = Next(SINCE), Next(SINCE)
    async with linked(sockets, old, new) as (f, remote, link):
        assert remote.agreement.version == PROTOCOL_VERSION + 1
        assert remote.agreement.understands(next_request(lora="adapter"))
        assert f.link.send(link.incarnation, next_request("one", "adapter"))
        assert f.link.send(link.incarnation, later(Sleep(1)))
        item = await asyncio.to_thread(received, link)
        assert item.message == next_request("one", "adapter")
        link.send(item.frontend, later(BlocksChanged(1)))
        await until(lambda: BlocksChanged(1) in new.seen and Sleep(1) in old.seen)
        assert (remote.agreement.skipped, link.unknown_messages) == (0, 0)


async def test_a_connection_to_an_updated_frontend_agrees_anew(sockets: Path) -> None:
    address = f"ipc://{sockets}/link"
    old, new = Next(SINCE), Next(SINCE)
    with engine(address, codec=old) as link:
        for codec, version in ((CODEC, PROTOCOL_VERSION), (new, PROTOCOL_VERSION + 1)):
            async with frontend(address, codec=codec) as f:
                await f.ready(link.incarnation)
                [connection] = link._frontends._connections.values()
                assert connection.agreement.version == version


# ----------------------------------------------------------------------------------------------------- the codec


def test_version_needed_covers_structs_in_a_message() -> None:
    codec = Codec(3, since=Since({Abort: 2}, {(SamplingParams, "min_p"): 3, (AddRequest, "priority"): 2}))
    params = msgspec.structs.replace(PARAMS, min_p=0.5)
    plain = request()
    assert codec.version_needed(plain) == 1
    assert codec.version_needed(Abort(["r"])) == 2
    assert codec.version_needed(msgspec.structs.replace(plain, priority=1)) == 2
    assert codec.version_needed(msgspec.structs.replace(plain, params=params)) == 3
    assert not Agreement(codec, 2).understands(msgspec.structs.replace(plain, params=params))
    assert Agreement(codec, 9).version == 3


def test_a_field_that_no_message_shows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"RequestOutput\.refusal"):
        Codec(since=Since(fields={(RequestOutput, "refusal"): 2}))


@pytest.mark.parametrize("decode", [CODEC.decode_from_engine, CODEC.decode_from_frontend])
def test_only_a_name_that_a_later_version_can_add_is_skipped(
    decode: Callable[[bytes], FromEngine | FromFrontend | UnknownMessage],
) -> None:
    assert decode(encode(later(BlocksChanged(1)))) == UnknownMessage("BlocksChanged")
    for name in ("", "no name", "x" * 65, 7, None):
        with pytest.raises(ProtocolError):
            decode(msgspec.msgpack.encode([name, 1]))


class _TwoParameters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message with two fields of one struct type."""

    a: SamplingParams
    b: SamplingParams


def test_version_needed_covers_each_field_of_a_struct() -> None:
    codec = Codec(2, Heartbeat | _TwoParameters, since=Since(fields={(SamplingParams, "min_p"): 2}))
    later = msgspec.structs.replace(PARAMS, min_p=0.5)
    for message in (_TwoParameters(later, PARAMS), _TwoParameters(PARAMS, later)):
        assert codec.version_needed(message) == 2  # type: ignore[arg-type]
    assert codec.version_needed(_TwoParameters(PARAMS, PARAMS)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("since", [Since({Welcome: 2}), Since(fields={(Hello, "progress"): 2})])
def test_the_messages_that_announce_the_version_need_no_version(since: Since) -> None:
    with pytest.raises(ValueError, match="every version must understand"):
        Codec(2, since=since)
