import socket
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.process.listening import has_ipv6
from kvasir.wire.address import LinkAddress, parse_address
from runtime.link.peers import engine, frontend, identity
from runtime.link.queued_link import QueuedLink


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ipc:///run/link", LinkAddress("ipc:///run/link", path="/run/link")),
        ("tcp://10.0.0.7:5557", LinkAddress("tcp://10.0.0.7:5557", host="10.0.0.7", port=5557)),
        ("tcp://*:5557", LinkAddress("tcp://*:5557", host="*", port=5557)),
        ("tcp://[::1]:0", LinkAddress("tcp://[::1]:0", host="::1", port=0)),
        ("tcp://localhost:1", LinkAddress("tcp://localhost:1", host="127.0.0.1", port=1)),
        ("tcp://qwen-frontend.ns:1", LinkAddress("tcp://qwen-frontend.ns:1", host="qwen-frontend.ns", port=1)),
    ],
)
def test_an_address_is_taken_apart(text: str, address: LinkAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/run/link",
        "ipc://",
        "ipc://link",
        "ipc://@abstract",
        "ipc://*",
        "ipc:///run/",
        "tcp://",
        "tcp://host",
        "tcp://host:port",
        "tcp://host:65536",
        "tcp://::1:5557",
        "tcp://[1:2]:5557",
        "tcp://a b:1",
        "tcp://host:1/x",
        "udp://host:1",
        "inproc://x",
    ],
)
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="--link") as refusal:
        parse_address(text)
    assert text in str(refusal.value)


def test_a_path_that_a_unix_socket_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="107"):
        parse_address("ipc:///" + "x" * 107)
    assert parse_address("ipc:///" + "x" * 106).is_ipc


def test_an_endpoint_is_written_as_zmq_wants_it() -> None:
    assert parse_address("tcp://[::1]:5557").endpoint() == "tcp://[::1]:5557"
    assert parse_address("tcp://name:5557").endpoint("10.0.0.7") == "tcp://10.0.0.7:5557"
    assert parse_address("tcp://name:5557").endpoint("fd00::7") == "tcp://[fd00::7]:5557"
    assert parse_address("ipc:///run/link").endpoint() == "ipc:///run/link"


# ----------------------------------------------------------------------------------------------- without keys


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "10.0.0.7", "[::]"])
async def test_frontend_without_keys_listens_on_this_machine_only(host: str) -> None:
    with pytest.raises(ConfigError, match="--link-keys"):
        async with frontend(f"tcp://{host}:0"):
            pass


@pytest.mark.parametrize("host", ["10.0.0.7", "qwen-frontend"])
def test_engine_without_keys_connects_on_this_machine_only(host: str) -> None:
    with pytest.raises(ConfigError, match="--link-keys"):
        QueuedLink(LinkConfig(link=(f"tcp://{host}:5557",)), identity())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_loopback_needs_no_keys(host: str) -> None:
    if host == "[::1]" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with frontend(f"tcp://{host}:0") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)


@pytest.mark.parametrize("host", ["*", "[::]"])
async def test_frontend_on_every_address_takes_ipv4_and_ipv6(host: str, keys: dict[str, Path]) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with frontend(f"tcp://{host}:0", keys["frontend"]) as f:
        port = f.link.addresses.rpartition(":")[2]
        with (
            engine(f"tcp://127.0.0.1:{port}", keys=keys["engine"]) as by_ipv4,
            engine(f"tcp://[::1]:{port}", keys=keys["engine"]) as by_ipv6,
        ):
            await f.ready(*(e.incarnation for e in (by_ipv4, by_ipv6)))


async def test_frontend_on_every_address_needs_no_ipv6(
    keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.wire.server_socket.has_ipv6", lambda: False)
    async with frontend("tcp://*:0", keys["frontend"]) as f:
        port = f.link.addresses.rpartition(":")[2]
        with engine(f"tcp://127.0.0.1:{port}", keys=keys["engine"]) as e:
            await f.ready(e.incarnation)


# ------------------------------------------------------------------------------------------- sockets in the way


@pytest.mark.parametrize("addresses", [(), ("ipc:///a/b", "ipc:///a/c")])
async def test_a_frontend_binds_exactly_one_address(addresses: tuple[str, ...]) -> None:
    link = FrontendLink(
        LinkConfig(link=addresses), service="", fingerprint="", tokenizer_hash="", wake=lambda: None
    )
    with pytest.raises(ConfigError, match="one address"):
        await link.start()
    await link.close()


async def test_a_frontend_binds_no_name() -> None:
    with pytest.raises(ConfigError, match="IP address"):
        async with frontend("tcp://example:5557"):
            pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://*:5557"])
def test_an_engine_connects_to_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match="a host and a port"):
        QueuedLink(LinkConfig(link=(address,)), identity())


async def test_a_port_in_use_is_refused_by_its_address() -> None:
    async with frontend("tcp://127.0.0.1:0") as f:
        with pytest.raises(ConfigError, match=f"{f.link.addresses} cannot be bound: another process"):
            async with frontend(f.link.addresses):
                pass


async def test_an_address_that_is_not_this_machines_is_refused(keys: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:5557 cannot be bound"):
        async with frontend("tcp://192.0.2.1:5557", keys["frontend"]):
            pass


async def test_a_socket_that_a_process_listens_on_is_refused_and_stays(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/link") as f:
        with pytest.raises(ConfigError, match="cannot be bound: a process listens there"):
            async with frontend(f"ipc://{sockets}/link"):
                pass
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)


async def test_a_socket_that_nobody_listens_on_any_more_is_replaced(sockets: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(sockets / "link"))
        dead.listen()
    assert (sockets / "link").is_socket()  # as a process that was killed leaves it
    async with frontend(f"ipc://{sockets}/link") as f:
        with engine(f.link.addresses) as e:
            await f.ready(e.incarnation)


async def test_a_file_in_the_place_of_the_socket_is_refused_and_stays(sockets: Path) -> None:
    (sockets / "link").write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"):
        async with frontend(f"ipc://{sockets}/link"):
            pass
    assert (sockets / "link").read_text() == "precious"


@pytest.fixture
def open_directory(sockets: Path) -> Path:
    sockets.chmod(0o755)
    return sockets


def test_an_engine_refuses_a_directory_that_others_can_enter(open_directory: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 700"):
        QueuedLink(LinkConfig(link=(f"ipc://{open_directory}/link",)), identity())


async def test_a_frontend_refuses_a_directory_that_others_can_enter(open_directory: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 700"):
        async with frontend(f"ipc://{open_directory}/link"):
            pass


async def test_a_directory_that_is_missing_is_made_private(sockets: Path) -> None:
    async with frontend(f"ipc://{sockets}/new/link"):
        assert (sockets / "new").stat().st_mode & 0o777 == 0o700


async def test_a_directory_that_cannot_be_made_is_refused(sockets: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        async with frontend(f"ipc://{sockets}/a/b/link"):
            pass
