import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry import request_log
from kvasir_contract.logs import JsonFormatter
from runtime.frontend.harness import MODEL, Frontend, running_frontend

GET_PATHS = (
    *(
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/load",
        "/metrics",
        "/version",
        "/openapi.json",
        "/docs",
        "/",
    ),
    *("/v1/models", f"/v1/models/{MODEL}"),
)
JSON = {"content-type": "application/json"}
ORIGIN = "https://chat.example.org"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.name == request_log.__name__]


# ---------------------------------------------------------------------------------------------- request ids


@pytest.mark.parametrize("path", ["/v1/models", "/nothing", "/health/live"])
async def test_a_request_id_is_echoed_or_made(frontend: Frontend, path: str) -> None:
    async with frontend.http() as client:
        echoed = await client.get(path, headers={"x-request-id": "mine-1"})
        made = [(await client.get(path)).headers["x-request-id"] for _ in range(2)]
    assert echoed.headers["x-request-id"] == "mine-1"
    assert len(set(made)) == 2


@pytest.mark.parametrize("given", ["x" * 129, "two words", "tab\there", "größe"])
async def test_a_request_id_that_is_not_sane_is_replaced(frontend: Frontend, given: str) -> None:
    async with frontend.http() as client:
        answer = await client.get("/v1/models", headers={b"x-request-id": given.encode()})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].isalnum()
    assert len(answer.headers["x-request-id"]) == 32


async def test_every_error_has_the_request_id_and_one_form() -> None:
    async with running_frontend(api_key=("key",), max_request_bytes=1000) as frontend:
        headers = {"x-request-id": "mine-1"}
        async with (
            frontend.http(**headers) as stranger,
            frontend.http(authorization="Bearer key", **headers) as client,
        ):
            answers = [
                (401, await stranger.get("/v1/models")),
                (401, await stranger.get("/nothing")),
                (401, await stranger.post("/tokenize", json={"prompt": "a"})),
                (401, await stranger.post("/reset_prefix_cache")),
                (400, await client.post("/v1/completions", content=b"{", headers=JSON)),
                (404, await client.get("/nothing")),
                (404, await client.get("/v1/models/other")),
                (405, await client.get("/v1/completions")),
                (405, await client.delete("/health")),
                (413, await client.post("/v1/completions", content=b" " * 2000, headers=JSON)),
            ]
    for status, answer in answers:
        assert answer.status_code == status, answer.url
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.headers["content-type"] == "application/json"
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answers[0][1].headers["www-authenticate"] == "Bearer"
    assert answers[7][1].headers["allow"] == "POST"
    assert answers[8][1].headers["allow"] == "GET, HEAD"


# ---------------------------------------------------------------------------------------------- HEAD


@pytest.mark.parametrize("path", GET_PATHS)
async def test_head_is_get_without_its_body(frontend: Frontend, path: str) -> None:
    async with frontend.http() as client:
        got, head = await client.get(path), await client.head(path)
        assert (await client.get("/version")).status_code == 200  # the connection is still in order
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # it changes all the time
        assert head.headers["content-length"] == str(len(got.content))


async def test_head_of_what_is_only_posted_is_405(frontend: Frontend) -> None:
    async with frontend.http() as client:
        answer = await client.head("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


# ---------------------------------------------------------------------------------------------- CORS


async def preflight(client: httpx.AsyncClient, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return await client.options("/v1/chat/completions", headers=headers)


async def test_without_the_option_no_page_may_read_an_answer(frontend: Frontend) -> None:
    async with frontend.http() as client:
        assert (await preflight(client, ORIGIN)).status_code == 405
        answer = await client.get("/v1/models", headers={"origin": ORIGIN})
    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_allowed_origins_may_call_and_read_errors() -> None:
    server: dict[str, Any] = {"allowed_origins": (ORIGIN,), "allow_credentials": True, "api_key": ("key",)}
    async with running_frontend(**server) as frontend, frontend.http() as client:
        allowed, other = await preflight(client, ORIGIN), await preflight(client, "https://evil.example")
        refused = await client.get("/v1/models", headers={"origin": ORIGIN})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert allowed.headers["x-request-id"]
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    assert "X-Request-Id" in refused.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"allowed_origins": ("https://a.example/",)}, "without a path or a slash"),
        ({"allowed_origins": ("a.example",)}, "an origin is a scheme"),
        ({"allowed_origins": ("*",), "allow_credentials": True}, "any web page"),
        ({"allow_credentials": True}, "without --allowed-origins"),
        ({"upload_timeout": 0.0}, "--upload-timeout"),
        ({"stalled_reader_timeout": 0.0}, "--stalled-reader-timeout"),
        ({"max_upload_bytes": 2**20}, "--max-upload-bytes 1048576 is below"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text.replace("*", r"\*")):
        ServerConfig(**options)


# ---------------------------------------------------------------------------------------------- log


async def test_a_request_is_one_line_with_what_it_was_and_came_to(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    frontend.engine.script.cached = 2
    async with frontend.http(**{"x-request-id": "mine-1"}) as client:
        answer = await client.post("/v1/completions", json={"prompt": [[5, 6, 7], [8]], "max_tokens": 2})
    (line,) = lines_of(caplog)
    assert line.pop("e2e_seconds") >= line.pop("ttft_seconds") > 0
    assert line == {
        "request_id": "mine-1",
        "id": answer.json()["id"],
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "model": MODEL,
        "prompt_tokens": 4,
        "cached_tokens": 4,
        "output_tokens": 4,
        "finish_reason": "length",
        "engine": frontend.engine.incarnation,
    }
    message = next(record.getMessage() for record in caplog.records if record.name == request_log.__name__)
    assert "POST /v1/completions 200 in " in message
    assert f"{MODEL}, 4 (4 cached) + 4 tokens, first after " in message
    assert message.endswith(f"length, {frontend.engine.incarnation} [mine-1]")


async def test_an_error_is_in_the_line_in_the_answer_or_in_the_stream(
    frontend: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with frontend.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hi", "temperature": "hot\n\x1b[31m"})
        await client.get("/no%0Ahing")
        frontend.engine.script.error = "out of luck"
        await client.post("/v1/completions", json={"prompt": "Hi", "stream": True})
    wrong, unknown, failed = lines_of(caplog)
    assert (wrong["status"], unknown["status"], failed["status"]) == (400, 404, 200)
    assert "temperature" in wrong["error"]
    assert unknown["path"] == "/no\\nhing"
    assert (failed["error"], failed["finish_reason"]) == ("out of luck", "error")
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_a_client_that_leaves_is_in_the_log(frontend: Frontend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    frontend.engine.script.pause_at = 1
    body = {"prompt": "Hi", "stream": True}
    async with frontend.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_lines())
    await frontend.idle()
    (line,) = lines_of(caplog)
    assert (line["status"], line["finish_reason"], line["output_tokens"]) == (200, "abort", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_before_its_answer_is_logged_as_499(
    frontend: Frontend, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    frontend.engine.script.pause_at = 0
    async with frontend.http() as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hi", "stream": stream}))
        await asyncio.to_thread(frontend.engine.wait_requests, 1)
        asking.cancel()
        await asyncio.wait([asking])
    await frontend.idle()
    (line,) = lines_of(caplog)
    assert (line["status"], line["finish_reason"]) == (499, "abort")
    assert "ttft_seconds" not in line


async def test_probes_are_not_logged_and_nothing_is_when_it_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_frontend() as frontend, frontend.http() as client:
        for path in ("/health", "/health/live", "/health/ready", "/ping", "/metrics", "/load"):
            await client.get(path)
    async with running_frontend(log_requests=False) as frontend, frontend.http() as client:
        await client.get("/v1/models")
    assert lines_of(caplog) == []


async def test_in_a_json_log_the_fields_are_fields(frontend: Frontend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with frontend.http(**{"x-request-id": "mine-1"}) as client:
        await client.get("/v1/models")
    (record,) = (record for record in caplog.records if record.name == request_log.__name__)
    line = json.loads(JsonFormatter("frontend").format(record))
    assert (line["request_id"], line["status"], line["level"]) == ("mine-1", 200, "info")
