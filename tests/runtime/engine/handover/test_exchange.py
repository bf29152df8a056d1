import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvasir.config.options import ConfigError
from kvasir.engine.handover.block_fetch import FetchLimits
from kvasir.engine.handover.messages import Blocks, FetchBlocks, checksum, decode_answering, decode_asking, encode
from kvasir.wire import client_socket
from kvasir.wire.keys import load_shared_keys
from runtime.engine.handover.sides import NUM_BLOCKS, PATIENCE, Side, block_hash
from runtime.link.written_keys import write_link_keys

IMPATIENT = FetchLimits(first_seconds=0.2, stall_seconds=0.2)
HASHES = [block_hash(number) for number in range(40)]
IDS = list(range(101, 141))


@pytest.fixture
def new_side() -> Iterator[Callable[..., Side]]:
    sides: list[Side] = []

    def make(seed: int, **options: Any) -> Side:
        sides.append(Side(seed, **options))
        return sides[-1]

    yield make
    for side in sides:
        side.exchange.close()


@pytest.fixture
def path() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="kv"))  # short: a socket's path has 107 characters at most
    yield f"ipc://{directory}/blocks"
    shutil.rmtree(directory)


@pytest.fixture
def peer() -> Iterator["zmq.Socket[bytes]"]:
    """A server whose answers the test sends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.rcvtimeo = int(PATIENCE * 1000)
    socket.bind("tcp://127.0.0.1:*")
    yield socket
    socket.close(linger=0)
    context.term()


def address_of(peer: "zmq.Socket[bytes]") -> str:
    return str(peer.getsockopt_string(zmq.LAST_ENDPOINT))


def giver(new_side: Callable[..., Side], address: str, **options: Any) -> tuple[Side, str]:
    side = new_side(1, **options)
    side.cached = {each: 2 * number + 1 for number, each in enumerate(HASHES)}
    address = side.exchange.listen(address)
    side.exchange.start()
    return side, address


def taker(new_side: Callable[..., Side], **options: Any) -> Side:
    side = new_side(2, **options)
    side.exchange.start()
    return side


def content(side: Side, block_ids: list[int]) -> bytes:
    return bytes(side.memory.read(block_ids))


def test_blocks_arrive_unchanged(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path)
    second = taker(new_side)
    untouched = content(second, [*range(101), *range(141, NUM_BLOCKS + 1)])
    ended = second.fetch(address, HASHES, IDS).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (40, "")
    assert content(second, IDS) == content(first, list(first.cached.values()))
    assert content(second, [*range(101), *range(141, NUM_BLOCKS + 1)]) == untouched
    assert first.no_pins.wait(PATIENCE)


@pytest.mark.parametrize("block_bytes", [2**21, 2**23 + 2])
def test_large_blocks_arrive_in_parts(new_side: Callable[..., Side], path: str, block_bytes: int) -> None:
    """Several blocks in a message, and one that is larger than a message should be."""
    first, address = giver(new_side, path, block_bytes=block_bytes, num_blocks=5)
    first.cached = {HASHES[number]: number + 1 for number in range(5)}
    second = taker(new_side, block_bytes=block_bytes, num_blocks=5)
    ended = second.fetch(address, HASHES[:5], list(range(5, 0, -1))).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (5, "")
    assert content(second, list(range(5, 0, -1))) == content(first, list(range(1, 6)))


def test_more_blocks_than_one_pin_arrive(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path)
    hashes = [block_hash(number) for number in range(1100)]
    first.cached = {each: number + 1 for number, each in enumerate(hashes)}
    second = taker(new_side)
    ended = second.fetch(address, hashes, list(range(1100, 0, -1))).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (1100, "")
    assert content(second, list(range(1100, 0, -1))) == content(first, list(range(1, 1101)))
    assert [len(first.wanted.get(timeout=PATIENCE).hashes) for _ in range(3)] == [512, 512, 76]


def test_blocks_up_to_the_first_missing_one_arrive(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path)
    del first.cached[HASHES[7]]
    second = taker(new_side)
    before = content(second, IDS[7:])
    ended = second.fetch(address, HASHES, IDS).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (7, "")
    assert content(second, IDS[7:]) == before


def test_no_block_arrives_if_none_is_cached(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path)
    first.cached.clear()
    ended = taker(new_side).fetch(address, HASHES, IDS).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (0, "")
    assert first.no_pins.wait(PATIENCE)


def test_an_engine_of_another_class_is_refused(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path)
    second = taker(new_side, kv_class="another class")
    before = content(second, IDS)
    ended = second.fetch(address, HASHES, IDS).result(PATIENCE)
    assert ended.num_blocks == 0
    assert "different KV classes" in ended.problem
    assert content(second, IDS) == before
    assert first.wanted.empty()


def test_a_wrong_checksum_ends_the_fetch_before_its_block(
    new_side: Callable[..., Side], peer: "zmq.Socket[bytes]"
) -> None:
    second = taker(new_side)
    before = content(second, IDS[2:])
    fetch = second.fetch(address_of(peer), HASHES, IDS)
    identity, asked = peer.recv_multipart()
    assert decode_asking(asked) == FetchBlocks("class", b"".join(HASHES))
    blocks = bytes(range(192))
    sums = [checksum(HASHES[place], memoryview(blocks)[64 * place : 64 * place + 64]) for place in range(3)]
    sums[2] ^= 1
    peer.send_multipart([identity, encode(Blocks(sums, last=True)), blocks])
    ended = fetch.result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (2, "a block does not match its checksum")
    assert content(second, IDS[:2]) == blocks[:128]
    assert content(second, IDS[2:]) == before


def test_blocks_in_the_wrong_order_are_not_accepted(
    new_side: Callable[..., Side], peer: "zmq.Socket[bytes]"
) -> None:
    second = taker(new_side)
    fetch = second.fetch(address_of(peer), HASHES, IDS)
    identity, _ = peer.recv_multipart()
    sums = [checksum(HASHES[1], memoryview(bytes(64))), checksum(HASHES[0], memoryview(bytes(64)))]
    peer.send_multipart([identity, encode(Blocks(sums, last=True)), bytes(128)])
    assert fetch.result(PATIENCE).num_blocks == 0


@pytest.mark.parametrize(
    "frames", [[b"\xc1"], [encode(Blocks([1], last=True)), b"short"], [encode(Blocks([1], True))]]
)
def test_a_malformed_answer_ends_the_fetch(
    new_side: Callable[..., Side], peer: "zmq.Socket[bytes]", frames: list[bytes]
) -> None:
    fetch = taker(new_side).fetch(address_of(peer), HASHES, IDS)
    identity, _ = peer.recv_multipart()
    peer.send_multipart([identity, *frames])
    ended = fetch.result(PATIENCE)
    assert ended.num_blocks == 0
    assert ended.problem


def test_the_end_of_the_peer_ends_the_fetch_at_once(
    new_side: Callable[..., Side], peer: "zmq.Socket[bytes]"
) -> None:
    """The blocks that came before are kept."""
    second = taker(new_side)
    fetch = second.fetch(address_of(peer), HASHES, IDS)
    identity, _ = peer.recv_multipart()
    peer.send_multipart([identity, encode(Blocks([checksum(HASHES[0], memoryview(bytes(64)))], False)), bytes(64)])
    peer.recv_multipart()  # MoreBlocks
    peer.close(linger=0)
    ended = fetch.result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (1, "the connection broke")


def test_an_address_without_an_engine_ends_the_fetch(new_side: Callable[..., Side], path: str) -> None:
    ended = taker(new_side).fetch(path, HASHES, IDS).result(PATIENCE)
    assert ended.num_blocks == 0
    assert ended.problem


@pytest.mark.parametrize("address", ["nonsense", "tcp://192.0.2.1:5572"])
def test_an_unusable_address_ends_the_fetch(new_side: Callable[..., Side], address: str) -> None:
    """Without keys, no engine on another machine is asked."""
    ended = taker(new_side).fetch(address, HASHES, IDS).result(PATIENCE)
    assert ended.num_blocks == 0
    assert "--link" in ended.problem


def test_a_fetch_without_a_free_socket_ends(
    new_side: Callable[..., Side], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request would wait for it forever."""

    def no_socket(*_: object, **__: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    first, address = giver(new_side, path)
    second = taker(new_side)
    with monkeypatch.context() as patch:
        patch.setattr(client_socket, "open_monitor", no_socket)
        ended = second.fetch(address, HASHES, IDS).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (0, f"{address} cannot be connected to: Too many open files")
    assert second.fetch(address, HASHES, IDS).result(PATIENCE).num_blocks == 40
    assert first.no_pins.wait(PATIENCE)


def test_a_slow_peer_is_given_up(new_side: Callable[..., Side], path: str) -> None:
    """It never pins the blocks. It learns of the end of the fetch, and drops the session."""
    first, address = giver(new_side, path, pins=False)
    ended = taker(new_side, limits=IMPATIENT).fetch(address, HASHES, IDS).result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (0, "the other engine is too slow")
    assert first.no_pins.wait(PATIENCE)


def test_a_peer_that_stalls_is_given_up(new_side: Callable[..., Side], peer: "zmq.Socket[bytes]") -> None:
    second = taker(new_side, limits=FetchLimits(PATIENCE, stall_seconds=0.2))
    fetch = second.fetch(address_of(peer), HASHES, IDS)
    identity, _ = peer.recv_multipart()
    peer.send_multipart([identity, encode(Blocks([checksum(HASHES[0], memoryview(bytes(64)))], False)), bytes(64)])
    ended = fetch.result(PATIENCE)
    assert (ended.num_blocks, ended.problem) == (1, "the other engine is too slow")


def test_a_peer_that_does_not_read_loses_its_pins(new_side: Callable[..., Side], path: str) -> None:
    """The messages of one window are on their way, and it asks for no more."""
    first, address = giver(new_side, path, session_seconds=0.2, block_bytes=2**22, num_blocks=1)
    first.cached = dict.fromkeys(HASHES, 1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    socket.send(encode(FetchBlocks("class", b"".join(HASHES))))
    first.wanted.get(timeout=PATIENCE)
    assert first.no_pins.wait(PATIENCE)
    for _ in range(2):
        message = decode_answering(socket.recv_multipart()[0])
        assert isinstance(message, Blocks)
        assert len(message.checksums) == 2
    socket.close(linger=0)
    context.term()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_engines_of_a_service_exchange_blocks_encrypted(
    new_side: Callable[..., Side], tmp_path: Path, host: str
) -> None:
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    keys = load_shared_keys(str(tmp_path / "engine"))
    first, address = giver(new_side, f"tcp://{host}:0", keys=keys)
    second = taker(new_side, keys=keys)
    assert second.fetch(address, HASHES, IDS).result(PATIENCE).num_blocks == 40
    assert content(second, IDS) == content(first, list(first.cached.values()))


def test_a_peer_with_another_key_gets_no_block(new_side: Callable[..., Side], tmp_path: Path) -> None:
    write_link_keys(tmp_path / "frontend", tmp_path / "engine")
    write_link_keys(tmp_path / "frontend2", tmp_path / "engine2")
    first, address = giver(new_side, "tcp://127.0.0.1:0", keys=load_shared_keys(str(tmp_path / "engine")))
    second = taker(new_side, keys=load_shared_keys(str(tmp_path / "engine2")))
    plain = new_side(3)
    plain.exchange.start()
    for side in (second, plain):
        ended = side.fetch(address, HASHES, IDS).result(PATIENCE)
        assert ended.num_blocks == 0
        assert ended.problem
    assert first.wanted.empty()


def test_blocks_do_not_leave_the_machine_without_keys(new_side: Callable[..., Side]) -> None:
    with pytest.raises(ConfigError, match="would not be encrypted"):
        new_side(1).exchange.listen("tcp://0.0.0.0:0")


def test_closing_ends_fetches_and_releases_pins(new_side: Callable[..., Side], path: str) -> None:
    first, address = giver(new_side, path, pins=False)
    second = taker(new_side)
    fetch = second.fetch(address, HASHES, IDS)
    first.wanted.get(timeout=PATIENCE)
    second.exchange.close()
    assert fetch.result(0).problem == "this engine ends"
    assert Path(path.removeprefix("ipc://")).exists()
    first.exchange.close()
    assert first.no_pins.is_set()
    assert not Path(path.removeprefix("ipc://")).exists()
