"""GET /status of pods with any image: responses are limited in bytes and time, and never raise an error."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kvasir_contract.endpoints import MAX_DEMAND_WAIT_SECONDS
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import MAX_REPORT_BYTES, ReportedProgress, StatusReport
from kvasir_operator.observe import status_reports
from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.status_reports import MAX_CONCURRENT, StatusReports
from operator_facts import pod as ready_pod

LOADING = StatusReport(Phase.LOADING, "m", progress=ReportedProgress(1, 2))
SEND_BUFFER_BYTES = 64 * 1024
MAX_BUFFERED_BYTES = 1024 * 1024
"""How much a sender can send before it blocks, into the socket buffers of both sides and the reader's own."""
PATIENCE_SECONDS = 60.0
"""Limit after which a test has failed. No test sleeps."""


Send = Callable[[bytes], Awaitable[None]]
Answer = Callable[[bytes, asyncio.StreamReader, Send], Awaitable[None]]
"""Gets the request's head, the connection, and the function that sends."""


class Hostile:
    """A server that sends the bytes of a test, and counts the bytes that the reader accepted."""

    def __init__(self, answer: Answer) -> None:
        self.sent = 0
        self.asked = 0
        self.port = 0
        self._answer = answer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()
            self.sent += len(data)

        try:
            await self._answer(await reader.readuntil(b"\r\n\r\n"), reader, send)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: Answer, host: str = "127.0.0.1") -> AsyncIterator[tuple[StatusReports, Hostile]]:
    hostile = Hostile(answer)
    listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    server = await asyncio.start_server(hostile.handle, sock=listening)
    hostile.port = listening.getsockname()[1]
    reports = StatusReports(port=hostile.port)
    try:
        yield reports, hostile
    finally:
        await reports.close()
        server.close()


async def asked(answer: Answer) -> tuple[Mapping[str, StatusReport], int]:
    """Return the report of a pod with this response, and how many bytes it could send."""
    async with serving(answer) as (reports, hostile):
        found = await asyncio.wait_for(reports.of([pod()]), PATIENCE_SECONDS)
        assert 1 <= hostile.asked <= 2  # a connection that ends without a byte is retried once
        return found, hostile.sent


def pod(name: str = "a", ip: str = "127.0.0.1", state: str = "running") -> Pod:
    found = ready_pod(name, ip=ip)
    return replace(found, container=replace(found.container, state=state))


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def sends(data: bytes) -> Answer:
    async def answer(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        await send(data)

    return answer


def endless(beginning: bytes, repeated: bytes) -> Answer:
    async def answer(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        await send(beginning)
        while True:
            await send(repeated)

    return answer


async def test_a_report_is_read() -> None:
    found, _ = await asked(sends(http(LOADING.to_json())))
    assert found == {"uid-a": LOADING}


async def test_a_report_in_many_pieces_is_read() -> None:
    async def answer(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        for byte in http(LOADING.to_json()):
            await send(bytes([byte]))

    assert (await asked(answer))[0] == {"uid-a": LOADING}


async def test_only_running_pods_with_an_address_are_asked() -> None:
    async with serving(sends(http(LOADING.to_json()))) as (reports, hostile):
        pods = [pod("a", state="waiting"), pod("b", ip=""), pod("c", state="")]
        assert await reports.of(pods) == {}
        assert hostile.asked == 0


async def test_a_pod_with_an_ipv6_address_is_asked() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    async with serving(sends(http(LOADING.to_json())), "::1") as (reports, _):
        assert await reports.of([pod(ip="::1")]) == {"uid-a": LOADING}


@pytest.mark.parametrize("ip", ["not an address", "fe80::1%nowhere", "127.0.0.1/../x", "1.2.3.4.5", "[::1"])
async def test_an_address_without_sense_is_not_an_error(ip: str) -> None:
    async with serving(sends(b"")) as (reports, _):
        assert await asyncio.wait_for(reports.of([pod(ip=ip)]), PATIENCE_SECONDS) == {}


async def test_nothing_listens_on_the_port() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        reports = StatusReports(port=unused.getsockname()[1])
        assert await reports.of([pod()]) == {}
        await reports.close()


BODY = json.loads(LOADING.to_json())
WRONG: dict[str, bytes] = {
    "nothing": b"",
    "an empty body": http(b""),
    "HTML": http(b"<html>"),
    "an array": http(b"[]"),
    "a number": http(b"1"),
    "half of a report": http(b'{"phase": "Loading"}'),
    "an unknown phase": http(json.dumps({**BODY, "phase": "Dreaming"}).encode()),
    "an unknown reason": http(json.dumps({**BODY, "reason": "Bored"}).encode()),
    "Infinity as progress": http(
        b'{"phase": "Loading", "message": "", "progress": {"done": Infinity, "total": 1}}'
    ),
    "a large float as progress": http(
        b'{"phase": "Loading", "message": "", "progress": {"done": 1e999, "total": 1}}'
    ),
    "many digits": http(b'{"phase": "Loading", "message": "", "live_requests": ' + b"9" * 10_000 + b"}"),
    "deep nesting": http(b"[" * 16_000),
    "bytes that are not UTF-8": http(b'{"phase": "Loading", "message": "\xff\xfe"}'),
    "one byte too many": http(LOADING.to_json().ljust(MAX_REPORT_BYTES + 1)),
    "a gzip encoding": http(gzip.compress(LOADING.to_json()), "Content-Encoding: gzip"),
    "a gzip bomb": http(gzip.compress(b" " * 50_000_000), "Content-Encoding: gzip"),
    "an unknown encoding": http(b"\x00", "Content-Encoding: nonsense"),
    "a shorter body than announced": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "chunks without sense": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}",
    "a header without sense": b"HTTP/1.1 200 OK\r\n\xff\xff\xff\r\n\r\n{}",
    "a huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n{}",
    "a huge status line": b"HTTP/1.1 200 " + b"x" * 1_000_000 + b"\r\n\r\n{}",
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n" * 3,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "a cookie and nothing": http(b"", "Set-Cookie: a=b; Max-Age=99999999999999999999"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_answer_is_not_a_report(case: str) -> None:
    found, sent = await asked(sends(WRONG[case]))
    assert found == {}
    assert sent <= MAX_BUFFERED_BYTES


async def test_a_body_of_the_longest_size_is_read() -> None:
    found, _ = await asked(sends(http(LOADING.to_json().ljust(MAX_REPORT_BYTES))))
    assert found == {"uid-a": LOADING}


async def test_a_redirect_is_not_followed() -> None:
    async with serving(sends(http(LOADING.to_json()))) as (_, secret):
        location = f"Location: http://127.0.0.1:{secret.port}/status"
        async with serving(sends(http(b"", location, status="302 Found"))) as (reports, hostile):
            assert await reports.of([pod()]) == {}
            assert (hostile.asked, secret.asked) == (1, 0)


CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"
ENDLESS: dict[str, Answer] = {
    "a body": endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65_536),
    "chunks": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CHUNK),
    "a gzip body": endless(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", gzip.compress(b" " * 50_000_000)),
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "one header": endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65_536),
    "a status line": endless(b"HTTP/1.1 200 ", b"y" * 65_536),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_an_endless_answer_is_left_soon(case: str) -> None:
    found, sent = await asked(ENDLESS[case])
    assert found == {}
    assert sent <= MAX_BUFFERED_BYTES


async def test_endless_interim_answers_end_with_the_time() -> None:
    assert (await asked(endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)))[0] == {}


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
async def test_a_pod_that_stops_answering_costs_a_second(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_reports, "SERVICE_TIMEOUT_SECONDS", 1000.0)

    async def answer(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        await send(beginning)
        await reader.read()  # until the operator disconnects

    assert (await asked(answer))[0] == {}


async def test_a_connection_that_is_reset_is_not_an_error() -> None:
    async def answer(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        raise ConnectionResetError

    assert (await asked(answer))[0] == {}


async def answers_one_host(head: bytes, reader: asyncio.StreamReader, send: Send) -> None:
    """Only 127.0.0.2 reports. The other addresses do not respond."""
    if b"Host: 127.0.0.2" in head:
        await send(http(LOADING.to_json()))
    else:
        await reader.read()


SILENT = [pod(f"silent-{number}") for number in range(MAX_CONCURRENT * 8)]


async def test_many_silent_pods_cost_no_more_than_the_services_time() -> None:
    async with serving(answers_one_host, "0.0.0.0") as (reports, hostile):
        pods = [pod("good", "127.0.0.2"), *SILENT]
        assert await asyncio.wait_for(reports.of(pods), PATIENCE_SECONDS) == {"uid-good": LOADING}
        assert hostile.asked < len(SILENT)


async def test_silent_pods_of_one_service_do_not_hold_up_another() -> None:
    """A tenant's image that never responds must not delay the progress of other services."""
    async with serving(answers_one_host, "0.0.0.0") as (reports, _):
        busy = asyncio.create_task(reports.of(SILENT))
        await asyncio.sleep(0)  # it starts
        found = await asyncio.wait_for(reports.of([pod("good", "127.0.0.2")]), PATIENCE_SECONDS)
        assert found == {"uid-good": LOADING}
        assert not busy.done()
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


# --------------------------------------------------------------------------------------------------------- demand


async def test_the_demand_of_a_frontend_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than for a report, but not forever."""
    paths: list[bytes] = []

    async def answer(head: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        paths.append(head.split(b" HTTP")[0])
        await send(http(LOADING.to_json()))

    async with serving(answer) as (reports, _):
        assert await reports.wait_for_demand(pod()) == LOADING
    assert paths == [b"GET /demand?timeout=25"]
    assert MAX_DEMAND_WAIT_SECONDS == 25
    monkeypatch.setattr(status_reports, "MAX_DEMAND_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(status_reports, "POD_TIMEOUT_SECONDS", 0.1)

    async def silent(_: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        await reader.read()

    async with serving(silent) as (reports, _):
        assert await asyncio.wait_for(reports.wait_for_demand(pod()), PATIENCE_SECONDS) is None


async def test_gates_are_closed_and_opened() -> None:
    orders: set[bytes] = set()

    async def answer(head: bytes, reader: asyncio.StreamReader, send: Send) -> None:
        orders.add(head.split(b"\r\nHost: ")[0] + b" " + head.split(b"Host: ")[1].split(b":")[0])
        await send(http(LOADING.to_json()))

    async with serving(answer, "0.0.0.0") as (reports, _):
        await reports.set_gates({pod("a"): True, pod("b", "127.0.0.2"): False, pod("c", ""): True})
    assert orders == {
        b"POST /gate/close HTTP/1.1 127.0.0.1",
        b"POST /gate/open HTTP/1.1 127.0.0.2",
    }


async def test_a_frontend_that_refuses_an_order_is_not_an_error() -> None:
    async with serving(sends(http(b"", status="503 Service Unavailable"))) as (reports, hostile):
        await reports.set_gates({pod(): True})
        assert hostile.asked == 1
