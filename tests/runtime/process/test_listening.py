import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvasir.process import listening
from kvasir.process.listening import has_ipv6, listening_socket, remove_socket_file, unix_socket, url_of
from kvasir_contract.endpoints import ANY_HOST

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def connects(host: str, listener: socket.socket) -> bool:
    try:
        socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()
    except OSError:
        return False
    return True


@needs_ipv6
def test_any_host_serves_ipv4_and_ipv6() -> None:
    with closing(listening_socket(ANY_HOST, 0, 8)) as listener:
        assert connects("127.0.0.1", listener)
        assert connects("::1", listener)
        assert url_of(listener) == f"http://[::]:{listener.getsockname()[1]}"


def test_any_host_serves_ipv4_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "has_ipv6", lambda: False)
    with closing(listening_socket(ANY_HOST, 0, 8)) as listener:
        assert listener.family == socket.AF_INET
        assert connects("127.0.0.1", listener)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_address_is_listened_on(host: str) -> None:
    with closing(listening_socket(host, 0, 8)) as listener:
        assert connects("::1", listener)
        assert not connects("127.0.0.1", listener)
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_ipv4_address_is_listened_on() -> None:
    with closing(listening_socket("127.0.0.1", 0, 8)) as listener:
        assert connects("127.0.0.1", listener)
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_address_of_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        listening_socket(host, 0, 8)


@pytest.fixture
def path() -> Iterator[str]:
    """A short one: paths of sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="kvs-", dir="/tmp") as folder:
        yield f"{folder}/socket"


def test_a_unix_socket_is_listened_at_and_its_file_removed(path: str) -> None:
    with closing(unix_socket(path, 8)) as listener:
        assert url_of(listener) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        remove_socket_file(listener)
    assert not os.path.exists(path)


def test_a_socket_file_without_a_process_is_replaced(path: str) -> None:
    unix_socket(path, 8).close()
    assert os.path.exists(path)
    with closing(unix_socket(path, 8)), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_socket_of_another_process_is_left_alone(path: str) -> None:
    with closing(unix_socket(path, 8)):
        with pytest.raises(OSError, match="in use"):
            unix_socket(path, 8)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_another_kind_of_file_is_left_alone(path: str) -> None:
    Path(path).write_text("notes")
    with pytest.raises(OSError, match="in use"):
        unix_socket(path, 8)
    assert Path(path).read_text() == "notes"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_unix_socket_of_another_type_is_in_use(path: str, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(path)
        if kind == socket.SOCK_SEQPACKET:
            other.listen()
        with pytest.raises(OSError, match="in use"):
            unix_socket(path, 8)
        assert os.path.exists(path)
