"""--max-upload-bytes holds for all bodies that are being received together, and for those alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from kvasir.frontend.http.bodies.body_memory import Uploads
from runtime.frontend.harness import POST_JSON, Frontend, running_frontend
from runtime.frontend.scripted import TIMEOUT
from runtime.frontend.telemetry.test_metrics import scrape

LARGEST = 100_000
LIMIT = 250_000
SHORT = 0.2


@pytest.fixture
async def bounded() -> AsyncIterator[Frontend]:
    async with running_frontend(max_request_bytes=LARGEST, max_upload_bytes=LIMIT) as result:
        yield result


class Upload:
    """A client that sends the head and all of a body but its last byte."""

    def __init__(self, frontend: Frontend, *, chunked: bool = False, size: int = LARGEST) -> None:
        self._frontend = frontend
        body = {"prompt": "Hi", "max_tokens": 2, "user": ""}
        body["user"] = "x" * (size - len(json.dumps(body)))
        self._body = json.dumps(body).encode()
        self._chunked = chunked

    async def begin(self) -> None:
        host, port = self._frontend.url.removeprefix("http://").split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        length = "Transfer-Encoding: chunked" if self._chunked else f"Content-Length: {len(self._body)}"
        self.writer.write(POST_JSON + f"{length}\r\n\r\n".encode())
        self._send(self._body[:-1])

    def finish(self) -> None:
        self._send(self._body[-1:])
        if self._chunked:
            self.writer.write(b"0\r\n\r\n")

    async def answer(self) -> tuple[int, str, dict[str, object]]:
        """Read status, head and body of the server's answer."""
        async with asyncio.timeout(TIMEOUT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), head, json.loads(await self.reader.readexactly(length))

    def _send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


async def hold(frontend: Frontend, count: int) -> list[Upload]:
    """So many uploads have come but for their last byte."""
    uploads = [Upload(frontend) for _ in range(count)]
    for upload in uploads:
        await upload.begin()
    await until(lambda: frontend.service.uploads.held == count * (LARGEST - 1))
    return uploads


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_body_beyond_the_bound_on_all_bodies_is_429(bounded: Frontend, chunked: bool) -> None:
    first, second = await hold(bounded, 2)
    third = Upload(bounded, chunked=chunked)
    await third.begin()
    status, head, body = await third.answer()
    assert (status, body["error"]["code"]) == (429, "too_many_requests")  # type: ignore[index]
    assert "--max-upload-bytes" in body["error"]["message"]  # type: ignore[index]
    assert "retry-after: 1\r\n" in head
    assert bounded.service.uploads.held == 2 * (LARGEST - 1)
    for upload in (first, second):
        upload.finish()
        assert (await upload.answer())[0] == 200
    # The rest of the refused one goes nowhere, and its connection serves the next request.
    third.finish()
    again = Upload(bounded, size=1000)
    third.writer.write(POST_JSON + b"Content-Length: 1000\r\n\r\n" + again._body)
    assert (await third.answer())[0] == 200
    assert bounded.service.uploads.held == 0
    assert (await scrape(bounded))["vllm:admission_rejections_total",].value == 1
    for upload in (first, second, third):
        upload.writer.close()


async def test_a_body_in_one_piece_is_served_while_there_is_no_room(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend.service, "uploads", Uploads(0))
    async with frontend.http() as client:
        response = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert response.status_code == 200


async def test_a_client_that_leaves_makes_room(bounded: Frontend) -> None:
    for upload in await hold(bounded, 2):
        upload.writer.close()
    await until(lambda: bounded.service.uploads.held == 0)
    await bounded.idle()


async def test_an_upload_that_is_too_large_makes_room(bounded: Frontend) -> None:
    await refused(bounded, Upload(bounded, chunked=True, size=2 * LARGEST), 413)


async def test_an_upload_that_is_late_makes_room() -> None:
    async with running_frontend(upload_timeout=SHORT) as frontend:
        await refused(frontend, Upload(frontend), 408)


async def refused(frontend: Frontend, upload: Upload, status: int) -> None:
    await upload.begin()
    assert (await upload.answer())[0] == status
    assert frontend.service.uploads.held == 0
    upload.writer.close()
