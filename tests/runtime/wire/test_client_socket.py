"""ClientSocket: the end of its connection."""

import socket
from contextlib import closing
from pathlib import Path

from kvasir.wire.client_socket import ClientSocket
from kvasir.wire.reactor import Reactor


def test_an_ended_server_has_not_refused(tmp_path: Path) -> None:
    ends: list[str | None] = []
    with closing(Reactor()) as reactor, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client = ClientSocket(reactor, f"ipc://{tmp_path}/s", None, print, ends.append)
        server.accept()[0].close()
        while not ends:
            reactor.wait(10)
        client.close()
    assert ends[0] is None
