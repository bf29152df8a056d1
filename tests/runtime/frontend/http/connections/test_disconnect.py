import asyncio

import pytest
from starlette.types import Scope

from kvasir.frontend.http.connections.disconnection import Disconnection, disconnection_of
from runtime.frontend.harness import POST_JSON, Frontend
from runtime.frontend.scripted import TIMEOUT
from runtime.frontend.streams import leave_after_first_token


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}]'),
        ("/v1/completions", b'{"prompt": "Hi"'),
    ],
    ids=["chat", "completion"],
)
async def test_a_client_that_leaves_aborts_its_request(
    frontend: Frontend, path: str, body: bytes, stream: bool
) -> None:
    frontend.engine.script.pause_at = 2
    body += b', "stream": true}' if stream else b"}"
    await leave_after_first_token(frontend, body, path, read=stream)
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()


async def test_client_that_leaves_before_a_token_aborts_its_request(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 0
    await leave_after_first_token(frontend, b'{"prompt": "Hi", "stream": true}', "/v1/completions", read=False)
    await asyncio.to_thread(frontend.engine.wait_aborts, 1)
    await frontend.idle()


async def test_a_client_that_leaves_aborts_all_prompts_of_its_request(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 2
    body = b'{"prompt": ["a", "b", "c"], "stream": true}'
    await leave_after_first_token(frontend, body, "/v1/completions", read=False)
    await asyncio.to_thread(frontend.engine.wait_aborts, 3)
    await frontend.idle()


async def test_others_go_on_when_one_client_leaves(frontend: Frontend) -> None:
    frontend.engine.script.pause_at = 2
    async with frontend.http() as client:
        staying = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 5}))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        await leave_after_first_token(frontend, b'{"prompt": "Hi"}', "/v1/completions", read=False)
        await asyncio.to_thread(frontend.engine.wait_aborts, 1)
        frontend.engine.resume()
        assert (await staying).json()["choices"][0]["finish_reason"] == "length"
    await frontend.idle()


async def test_client_that_leaves_while_sending_leaves_nothing(frontend: Frontend) -> None:
    host, port = frontend.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(POST_JSON + b'Content-Length: 100\r\n\r\n{"prompt"')
    await writer.drain()
    async with frontend.http() as client:
        await client.get("/version")  # by then the server has begun to read the other request
    (task,) = frontend.server.server_state.tasks
    writer.close()
    await asyncio.wait_for(task, TIMEOUT)
    assert frontend.engine.seen.requests == []


# ---------------------------------------------------------------------------------------------- by itself


def test_a_disconnection_is_reported_also_to_a_late_reader() -> None:
    scope: Scope = {"state": {}}
    events: list[str] = []
    Disconnection(scope, lambda: events.append("read")).report()
    disconnection_of(scope).call(lambda: events.append("left"))
    assert events == ["left"]


def test_a_connection_is_read_while_its_end_is_awaited() -> None:
    scope: Scope = {"state": {}}
    events: list[str] = []
    disconnection = Disconnection(scope, lambda: events.append("read"))
    disconnection.call(lambda: events.append("left"))
    assert events == ["read"]
    disconnection.report()
    assert events == ["read", "left"]


def test_a_disconnection_after_the_answer_calls_nothing() -> None:
    scope: Scope = {"state": {}}
    events: list[str] = []
    disconnection = Disconnection(scope, lambda: None)
    disconnection.call(lambda: events.append("left"))
    disconnection.cancel()
    disconnection.report()
    assert events == []
