"""The link's keys: how a directory of them looks, and that a peer without them is not admitted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import zmq

from kvasir.config.options import ConfigError
from kvasir.wire.keys import load_engine_keys, load_frontend_keys
from kvasir_contract.environment import ENGINE_KEY_FILES, FRONTEND_KEY_FILES, KEY_FILES
from kvasir_operator.link_keys import new_link_keys
from runtime.link.bare_peers import BareEngine
from runtime.link.peers import PATIENCE, Frontend, engine, frontend, hello, serve_one
from runtime.link.written_keys import write_link_keys


def test_each_side_holds_its_secret_and_the_other_public_key(keys: dict[str, Path]) -> None:
    at_frontend = load_frontend_keys(str(keys["frontend"]))
    at_engine = load_engine_keys(str(keys["engine"]))
    assert at_frontend.peer_public == at_engine.public
    assert at_engine.peer_public == at_frontend.public
    assert {file.name for file in keys["frontend"].iterdir()} == {"server.secret", "client.public"}
    assert {file.name for file in keys["engine"].iterdir()} == {"client.secret", "server.public"}


def test_operator_makes_fresh_keys_under_the_expected_names() -> None:
    first, second = new_link_keys(), new_link_keys()
    assert first.keys() == set(KEY_FILES) == {*FRONTEND_KEY_FILES, *ENGINE_KEY_FILES}
    assert not set(first.values()) & set(second.values())


def test_a_secret_shows_in_no_log(keys: dict[str, Path]) -> None:
    loaded = load_frontend_keys(str(keys["frontend"]))
    assert loaded.secret.decode() not in repr(loaded)


def test_directory_of_the_other_side_is_rejected_with_the_files(keys: dict[str, Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"client\.secret cannot be read.*an engine client\.secret and server\.public"
    ):
        load_engine_keys(str(keys["frontend"]))


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 41, b"\xff" * 40])
def test_a_damaged_key_is_refused_by_its_file(keys: dict[str, Path], content: bytes) -> None:
    file = keys["frontend"] / "client.public"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"client\.public does not hold a key"):
        load_frontend_keys(str(keys["frontend"]))


def test_a_line_end_behind_the_key_does_no_harm(keys: dict[str, Path]) -> None:
    file = keys["engine"] / "server.public"
    before = load_engine_keys(str(keys["engine"]))
    file.write_text(file.read_text() + "\n")
    assert load_engine_keys(str(keys["engine"])) == before


# ----------------------------------------------------------------------------------------------- who is let in


@pytest.fixture
async def f(keys: dict[str, Path]) -> AsyncIterator[Frontend]:
    async with frontend("tcp://127.0.0.1:0", keys["frontend"]) as f:
        yield f


class _Watch(logging.Handler):
    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        self._call()


async def logged(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Until a line of log has all these words."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    handler = _Watch(lambda: loop.call_soon_threadsafe(news.set))
    logging.getLogger().addHandler(handler)
    try:
        async with asyncio.timeout(PATIENCE):
            while not any(all(word in line for word in words) for line in caplog.messages):
                await news.wait()
                news.clear()
    finally:
        logging.getLogger().removeHandler(handler)


async def test_engine_with_a_foreign_key_is_refused_on_both_sides(
    f: Frontend, keys: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_link_keys(tmp_path / "other frontend", tmp_path / "other engine")
    foreign = tmp_path / "other engine"
    (foreign / "server.public").write_bytes((keys["engine"] / "server.public").read_bytes())
    with engine(f.link.addresses, keys=foreign) as stranger, engine(f.link.addresses, keys=keys["engine"]) as e:
        await f.ready(e.incarnation)
        await logged(caplog, "LinkRefused", "127.0.0.1", "its key is not the one in client.public")
        await logged(caplog, "LinkRefused", "the server does not admit the client's key")
        assert stranger.problem is not None
        assert stranger.problem.refused
        assert e.problem is None
        assert (stranger.accepted, e.accepted) == ((), ("127.0.0.1",))
        assert list(f.link.engines) == [e.incarnation]
        await asyncio.gather(f.ask(e.incarnation), serve_one(e))


async def test_engine_rejects_a_frontend_with_another_key(
    f: Frontend, keys: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_link_keys(tmp_path / "other frontend", tmp_path / "other engine")
    mistaken = keys["engine"]
    (mistaken / "server.public").write_bytes((tmp_path / "other engine" / "server.public").read_bytes())
    with engine(f.link.addresses, keys=mistaken) as e:
        await logged(caplog, "LinkRefused", f.link.addresses, "the server's key is not the client's server.public")
        await logged(caplog, "LinkRefused", "closed the connection during the handshake")
        assert e.problem is not None
        assert e.problem.refused
        assert not f.link.engines


async def test_engine_without_keys_is_refused_on_both_sides(f: Frontend, caplog: pytest.LogCaptureFixture) -> None:
    with engine(f.link.addresses) as e:
        await logged(caplog, "LinkRefused", "one side has --link-keys and the other has none")
        await logged(caplog, "LinkRefused", "closed the connection during the handshake")
        assert e.problem is not None
        assert e.problem.refused
        assert not f.link.engines


async def test_an_engine_with_keys_does_not_talk_to_a_frontend_without(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with frontend("tcp://127.0.0.1:0") as f:
        with engine(f.link.addresses, keys=keys["engine"]):
            await logged(caplog, "LinkRefused", "one side has --link-keys")
            assert not f.link.engines


async def test_a_socket_in_a_private_directory_needs_no_encryption(sockets: Path, keys: dict[str, Path]) -> None:
    async with frontend(f"ipc://{sockets}/link", keys["frontend"]) as f:
        with engine(f.link.addresses, keys=keys["engine"]) as e:
            await f.ready(e.incarnation)


async def test_any_other_curve_client_is_refused(f: Frontend, keys: dict[str, Path]) -> None:
    """A CURVE server without a key check would admit it."""
    public, secret = zmq.curve_keypair()
    known = load_engine_keys(str(keys["engine"]))
    options = {"curve_serverkey": known.peer_public, "curve_publickey": public, "curve_secretkey": secret}
    outsider = BareEngine(f.link.addresses, "outsider", **options, rcvtimeo=500)
    outsider.socket.linger = 0
    outsider.say(hello("outsider"))
    assert not await asyncio.to_thread(outsider.socket.poll, 500)
    assert not f.link.engines
    outsider.close()
