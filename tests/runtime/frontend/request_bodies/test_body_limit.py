"""--max-request-bytes holds for every way of sending a body."""

import asyncio
from collections.abc import AsyncIterator

from runtime.frontend.harness import POST_JSON, running_frontend

LIMIT = 10_000
JSON = {"content-type": "application/json"}


async def chunks(size: int) -> AsyncIterator[bytes]:
    """A body without a Content-Length."""
    for _ in range(size // 1000):
        yield b" " * 1000


async def test_body_over_the_limit_is_413_on_a_connection_that_goes_on() -> None:
    async with running_frontend(max_request_bytes=LIMIT) as frontend, frontend.http() as client:
        announced = await client.post("/v1/completions", content=b" " * (LIMIT + 1), headers=JSON)
        chunked = await client.post("/v1/completions", content=chunks(50 * LIMIT), headers=JSON)
        for response in (announced, chunked):
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
            assert "--max-request-bytes" in response.json()["error"]["message"]
        assert (await client.post("/v1/completions", json={"prompt": "Hi"})).status_code == 200


async def test_endless_body_is_answered_while_it_is_being_sent() -> None:
    async with running_frontend(max_request_bytes=LIMIT) as frontend:
        host, port = frontend.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(POST_JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        async with asyncio.timeout(60):
            while not answer.done():
                writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        assert b" 413 " in answer.result()
        writer.close()
