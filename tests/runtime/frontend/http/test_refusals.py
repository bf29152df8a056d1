import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kvasir.frontend.http.connections.connection import MAX_HEADERS
from kvasir.frontend.http.refusals import MAX_LINES_PER_SECOND
from kvasir.frontend.telemetry import request_log
from runtime.frontend.harness import Frontend, running_frontend
from runtime.frontend.scripted import TIMEOUT

HEADERS = b"x: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n"


@pytest_asyncio.fixture
async def quiet() -> AsyncIterator[Frontend]:
    async with running_frontend(log_requests=False) as frontend:
        yield frontend


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.name == request_log.__name__]


async def refused(frontend: Frontend, *pieces: bytes) -> tuple[str, str, str]:
    """Return the answer's status and request id, and the address of the client."""
    host, port = frontend.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(TIMEOUT):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        head = (await reader.read()).partition(b"\r\n\r\n")[0].decode()
    own = writer.get_extra_info("sockname")
    writer.close()
    (request_id,) = [line.split(": ")[1] for line in head.splitlines() if line.startswith("x-request-id: ")]
    return head.split(" ")[1], request_id, f"{own[0]} port {own[1]}"


@pytest.mark.parametrize(
    ("sent", "status", "what"),
    [
        (b"nonsense\r\n\r\n", 400, "- -"),
        (b"GET /v1/models?secret HTTP/1.1\r\n" + HEADERS, 431, "GET /v1/models"),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: b\r\n\x00\r\n\r\n", 400, "GET /v1/models"),
    ],
    ids=["no HTTP", "headers", "malformed header"],
)
async def test_a_request_without_a_head_has_its_line(
    frontend: Frontend, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, what: str
) -> None:
    caplog.set_level(logging.INFO)
    answered, request_id, client = await refused(frontend, sent)
    (line,) = lines_of(caplog)
    assert answered == str(status)
    assert (line["status"], f"{line['method']} {line['path']}", line["client"]) == (status, what, client)
    assert line["request_id"] == request_id
    (text,) = [record.getMessage() for record in caplog.records if record.name == request_log.__name__]
    assert text.startswith(f"{what} {status} in 0.000 s: ")
    assert text.endswith(f", from {client} [{request_id}]")


async def test_a_started_request_has_one_line_with_the_servers_error(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: mine\r\n"
    host, port = frontend.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(TIMEOUT):
        writer.write(head + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # the route reads the body
        writer.write(b"zz\r\n")
        answer = await reader.read()
    writer.close()
    await frontend.idle()
    (line,) = lines_of(caplog)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-request-id: mine\r\n" in answer
    assert (line["request_id"], line["status"]) == ("mine", 400)
    assert "check the chunks of its body" in line["error"]


async def test_refusals_are_not_logged_without_a_request_log(
    quiet: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert (await refused(quiet, b"nonsense\r\n\r\n"))[0] == "400"
    assert lines_of(caplog) == []


async def test_a_flood_of_refusals_is_counted_not_logged(
    frontend: Frontend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    second = 100.0
    new_connection: Any = frontend.server.config.http_protocol_class
    monkeypatch.setattr(new_connection.args[-1], "_clock", lambda: second)
    for _ in range(MAX_LINES_PER_SECOND + 7):
        await refused(frontend, b"nonsense\r\n\r\n")
    assert len(lines_of(caplog)) == MAX_LINES_PER_SECOND
    second += 1
    await refused(frontend, b"nonsense\r\n\r\n")
    assert len(lines_of(caplog)) == MAX_LINES_PER_SECOND + 1
    assert "7 more requests were refused and not logged" in caplog.messages
