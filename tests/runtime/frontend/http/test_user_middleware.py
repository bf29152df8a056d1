"""--middleware, --root-path, --disable-fastapi-docs and --no-enable-request-id-headers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.frontend.app import create_app
from kvasir.frontend.http.user_middleware import load_middleware
from kvasir.frontend.server import build_service
from runtime.frontend.harness import ANSWER, frontend_config, running_frontend

MODULE = """
from starlette.responses import JSONResponse

NOT_CALLABLE = 1

class Stamp:
    def __init__(self, app):
        self.app = app
    async def __call__(self, scope, receive, send):
        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-class", b"seen")]
            await send(message)
        await self.app(scope, receive, stamped)

class Demanding:
    def __init__(self, app, secret):
        self.app = app

async def guard(request, call_next):
    if request.headers.get("x-teapot"):
        return JSONResponse({"short": "and stout"}, 418)
    response = await call_next(request)
    response.headers["x-function"] = response.headers.get("x-class", "not seen")
    return response

async def broken(request, call_next):
    raise OSError("no more tea")
"""
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "tea_middleware.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "tea_middleware"
    sys.modules.pop("tea_middleware", None)


async def test_a_class_and_a_function_surround_every_request(module: str) -> None:
    names = (f"{module}.Stamp", f"{module}.guard")
    async with running_frontend(middleware=names, api_key=("secret",)) as frontend, frontend.http() as client:
        short = await client.post("/v1/chat/completions", headers={"x-teapot": "1"}, json=CHAT)
        assert (short.status_code, short.json()) == (418, {"short": "and stout"})
        assert short.headers["x-request-id"]
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.headers["x-function"]) == (401, "seen")
        key = {"Authorization": "Bearer secret"}
        answer = await client.post("/v1/chat/completions", headers=key, json=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        async with client.stream(
            "POST", "/v1/chat/completions", headers=key, json={**CHAT, "stream": True}
        ) as stream:
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        await frontend.idle()


async def test_a_client_that_leaves_is_noticed_behind_middleware(module: str) -> None:
    async with running_frontend(middleware=(f"{module}.guard",)) as frontend, frontend.http() as client:
        frontend.engine.script.pause_at = 3
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
            await anext(stream.aiter_lines())
        await frontend.idle()


async def test_middleware_that_raises_is_a_plain_500(module: str) -> None:
    async with running_frontend(middleware=(f"{module}.broken",)) as frontend, frontend.http() as client:
        answer = await client.get("/v1/models")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "tea" not in answer.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Stamp", "give the path of a class or function"),
        ("no_such_module.Stamp", "cannot be imported .ModuleNotFoundError"),
        ("tea_middleware.missing", "cannot be imported .AttributeError"),
        ("tea_middleware.NOT_CALLABLE", "neither a class nor a coroutine function"),
    ],
)
def test_middleware_that_cannot_be_used_is_named(module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--middleware {name}.*{message}"):
        load_middleware([name])


async def test_requests_come_with_the_root_path_or_without_it() -> None:
    async with running_frontend(root_path="/llm", api_key=("secret",)) as frontend, frontend.http() as client:
        for path in ("/v1/models", "/llm/v1/models"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={"Authorization": "Bearer secret"})).status_code == 200
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]
        assert (await client.get("/llm/health/live")).status_code == 200
        assert (await client.get("/llmx/health/live")).status_code == 401
        assert 'handler="/v1/models",method="GET",status="2xx"} 2.0' in (await client.get("/metrics")).text


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a//b"])
def test_a_root_path_has_a_slash_in_front_and_none_behind(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--root-path {path}: give a path such as /llm"):
        ServerConfig(root_path=path)


async def test_the_description_can_be_left_out() -> None:
    async with running_frontend(disable_fastapi_docs=True) as frontend, frontend.http() as client:
        for path in ("/docs", "/openapi.json"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == f"there is no GET {path} here"


async def test_request_ids_can_be_left_out_of_answers() -> None:
    async with running_frontend(enable_request_id_headers=False) as frontend, frontend.http() as client:
        assert "x-request-id" not in (await client.get("/v1/models")).headers


def test_a_class_that_cannot_be_used_is_named_at_start(module: str) -> None:
    """Otherwise the server would be ready, and every request would fail."""
    config = frontend_config(LinkConfig(link=("ipc:///not/used",)), middleware=(f"{module}.Demanding",))
    with pytest.raises(ConfigError, match=r"--middleware: .*secret"):
        create_app(build_service(config))
