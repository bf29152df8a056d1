from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam

from runtime.frontend.harness import MODEL, Frontend, running_frontend

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is a pod?"}]
ASKED: dict[str, Any] = {"messages": QUESTION, "max_tokens": 50}


def error_in(response: httpx.Response, status: int, type: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", type)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x " * 100_000}]}, "messages"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "text", "text": "Hi"}] * 8193}, "system"),
        ({"messages": QUESTION * 8193}, "messages"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(
    frontend: Frontend, path: str, body: dict[str, object], param: str
) -> None:
    async with frontend.http() as client:
        response = await client.post(path, json=ASKED | body)
    assert param in error_in(response, 400, "invalid_request_error")
    assert frontend.engine.seen.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x" * 5000]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"container": "c"}, "container"),
    ],
)
async def test_a_wrong_field_of_a_generation_is_refused_by_its_name(
    frontend: Frontend, body: dict[str, object], param: str
) -> None:
    async with frontend.http() as client:
        response = await client.post("/v1/messages", json=ASKED | body)
    assert param in error_in(response, 400, "invalid_request_error")


async def test_an_unknown_model_is_not_found(frontend: Frontend) -> None:
    async with frontend.anthropic() as client:
        with pytest.raises(anthropic.NotFoundError, match="claude-9"):
            await client.messages.create(model="claude-9", messages=QUESTION, max_tokens=50)
        with pytest.raises(anthropic.NotFoundError, match="claude-9"):
            await client.messages.count_tokens(model="claude-9", messages=QUESTION)


async def test_an_unknown_path_below_is_not_found(frontend: Frontend) -> None:
    async with frontend.http() as client:
        error_in(await client.post("/v1/messages/batches", json={}), 404, "not_found_error")
        assert error_in(await client.get("/v1/messages"), 405, "invalid_request_error")
        beside = await client.get("/v1/messagesx")
    assert beside.json().keys() == {"error"}


async def test_malformed_json_is_an_invalid_request(frontend: Frontend) -> None:
    async with frontend.http() as client:
        headers = {"content-type": "application/json"}
        error_in(await client.post("/v1/messages", content=b"{", headers=headers), 400, "invalid_request_error")


async def test_a_large_body_is_too_large() -> None:
    async with running_frontend(max_request_bytes=200) as frontend, frontend.http() as client:
        response = await client.post("/v1/messages", json=ASKED | {"system": "x" * 300})
    error_in(response, 413, "request_too_large")


async def test_a_full_server_asks_to_wait() -> None:
    async with running_frontend(max_live_requests=1) as frontend:
        frontend.engine.script.pause_at = 2
        async with (
            frontend.http() as raw,
            frontend.anthropic() as client,
            client.messages.stream(model=MODEL, **ASKED) as stream,
        ):
            response = await raw.post("/v1/messages", json={})  # refused before the body is read
            frontend.engine.resume()
            await stream.until_done()
    error_in(response, 429, "rate_limit_error")
    assert response.headers["retry-after"]


async def test_a_service_without_engines_is_overloaded() -> None:
    async with running_frontend(engine=False, hold_timeout=0.0) as frontend, frontend.http() as client:
        response = await client.post("/v1/messages", json=ASKED)
    error_in(response, 503, "overloaded_error")


async def test_a_missing_key_is_an_authentication_error() -> None:
    async with running_frontend(api_key=("right",)) as frontend, frontend.http() as client:
        error_in(await client.post("/v1/messages", json=ASKED), 401, "authentication_error")


async def test_the_key_may_come_in_anthropics_header() -> None:
    async with running_frontend(api_key=("right",)) as frontend:
        async with frontend.anthropic("right") as client:
            assert (await client.messages.count_tokens(model=MODEL, messages=QUESTION)).input_tokens > 0
        async with frontend.anthropic("wrong") as client:
            with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
                await client.messages.count_tokens(model=MODEL, messages=QUESTION)
        async with frontend.http(authorization="Bearer right") as raw:
            assert (await raw.post("/v1/messages", json=ASKED)).status_code == 200
        async with frontend.http() as raw:
            chat = await raw.post("/v1/chat/completions", json=ASKED, headers={"x-api-key": "right"})
        assert chat.status_code == 200
