import asyncio
import queue
import socket
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kvasir.link.engine_end.engine_link import Resolver
from kvasir.wire.address import LinkAddress, look_up, parse_address
from runtime.link.peers import engine, frontend, frontend_lost, serve_one


class Names:
    """A name server whose records a test changes; it counts the look-ups."""

    def __init__(self, *ips: str) -> None:
        self.ips = frozenset(ips)
        self.error: OSError | None = None
        self._asked = threading.Semaphore(0)

    def __call__(self, name: str) -> frozenset[str]:
        assert name == "frontends"
        try:
            if self.error is not None:
                raise self.error
            return self.ips
        finally:
            self._asked.release()

    async def asked(self) -> None:
        """After a look-up that began after this call."""
        while self._asked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert await asyncio.to_thread(self._asked.acquire, timeout=60)


async def test_connections_follow_the_records_of_a_name(keys: dict[str, Path]) -> None:
    names = Names("127.0.0.1")
    options: dict[str, Any] = {"keys": keys["engine"], "lookup": names, "lookup_interval": 0.01}
    async with frontend("tcp://127.0.0.1:0", keys["frontend"]) as first:
        port = first.link.addresses.rpartition(":")[2]
        async with frontend(f"tcp://127.0.0.2:{port}", keys["frontend"]) as second:
            with engine(f"tcp://frontends:{port}", **options) as e:
                await first.ready(e.incarnation)
                assert not second.link.engines
                names.ips = frozenset({"127.0.0.1", "127.0.0.2"})
                await second.ready(e.incarnation)

                # The first is taken out of the DNS: it drains, and is served until it goes.
                names.ips = frozenset({"127.0.0.2"})
                await names.asked()
                await asyncio.gather(first.ask(e.incarnation), serve_one(e))
                await first.link.close()
                assert await asyncio.to_thread(frontend_lost, e) == first.link.incarnation
                assert not second.seen.lost
                await asyncio.gather(second.ask(e.incarnation), serve_one(e))

                # Nothing is connected to the vanished address any more, even if a frontend is there again.
                async with frontend(f"tcp://127.0.0.1:{port}", keys["frontend"]) as third:
                    await names.asked()
                    assert not third.link.engines
                    names.ips = frozenset({"127.0.0.1", "127.0.0.2"})
                    await third.ready(e.incarnation)


async def test_a_name_server_that_fails_costs_no_frontend(
    keys: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    names = Names("127.0.0.1")
    async with frontend("tcp://127.0.0.1:0", keys["frontend"]) as f:
        port = f.link.addresses.rpartition(":")[2]
        options: dict[str, Any] = {"keys": keys["engine"], "lookup": names, "lookup_interval": 0.01}
        with engine(f"tcp://frontends:{port}", **options) as e:
            await f.ready(e.incarnation)
            names.error = socket.gaierror(socket.EAI_AGAIN, "try again")
            await names.asked()
            await asyncio.gather(f.ask(e.incarnation), serve_one(e))
            assert caplog.text.count("looking up frontends failed") == 1


def test_only_changes_are_reported() -> None:
    names = Names("10.0.0.1")
    reports: queue.SimpleQueue[tuple[LinkAddress, frozenset[str]]] = queue.SimpleQueue()
    address = parse_address("tcp://frontends:1")
    resolver = Resolver([address], lambda address, ips: reports.put((address, ips)), names, 0.001)
    resolver.start()
    assert reports.get(timeout=60) == (address, frozenset({"10.0.0.1"}))
    names.ips = frozenset()
    assert reports.get(timeout=60) == (address, frozenset())
    resolver.stop()
    assert reports.empty()


def test_a_name_without_records_has_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: object, **kwargs: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    assert look_up("frontends") == frozenset()


def test_failure_of_the_name_server_keeps_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    with pytest.raises(OSError, match="later"):
        look_up("frontends")


@pytest.mark.parametrize(
    ("records", "addresses"),
    [
        (
            [(socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "fd00::1"), (socket.AF_INET, "10.0.0.2")],
            {"10.0.0.1", "10.0.0.2"},
        ),
        ([(socket.AF_INET6, "fd00::1")], {"fd00::1"}),
    ],
)
def test_a_pod_with_two_families_is_one_address(
    monkeypatch: pytest.MonkeyPatch, records: list[tuple[socket.AddressFamily, str]], addresses: set[str]
) -> None:
    found = [(family, socket.SOCK_STREAM, 6, "", (ip, 0)) for family, ip in records]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
    assert look_up("frontends") == addresses
