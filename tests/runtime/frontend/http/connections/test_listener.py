"""The listening socket, and the messages when it cannot be opened."""

import socket
from pathlib import Path

import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.http.connections.acceptor import listen
from kvasir.process.listening import url_of


def test_port_0_takes_a_free_port_and_tells_it() -> None:
    with listen(ServerConfig(port=0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        with socket.create_connection(listener.getsockname()):
            pass


def test_a_port_in_use_is_told_with_the_option_to_change() -> None:
    with listen(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} is in use on 127\.0\.0\.1: choose another"):
            listen(ServerConfig(port=port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host {host}"):
        listen(ServerConfig(host=host, port=0))


def test_an_inherited_socket_is_served() -> None:
    with listen(ServerConfig(port=0)) as first, listen(ServerConfig(fd=first.fileno())) as same:
        assert same.getsockname() == first.getsockname()
        same.detach()


def test_an_fd_that_is_no_listening_socket_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(ConfigError, match=f"--fd {left.fileno()}"):
        listen(ServerConfig(fd=left.fileno()))
    with pytest.raises(ConfigError, match="--fd 9999 is not an open socket"):
        listen(ServerConfig(fd=9999))


def test_a_unix_socket_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Path(path).write_text("notes")
    with pytest.raises(ConfigError, match=f"--uds {path}: a process listens there, or it is not a socket"):
        listen(ServerConfig(uds=path))
    with pytest.raises(ConfigError, match="AF_UNIX path too long: choose another path"):
        listen(ServerConfig(uds="x" * 200))
