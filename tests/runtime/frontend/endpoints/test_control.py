from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import Depends, Response

from kvasir.frontend.endpoints import control
from kvasir.frontend.http import auth
from kvasir.frontend.routing import LeanRoute, new_router
from kvasir.frontend.service import require_admin
from runtime.frontend.harness import Frontend, running_frontend

RESET = "/reset_prefix_cache"
ADMIN = "an-admin-key"
ADMIN_HEADER = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture
async def controlled() -> AsyncIterator[Frontend]:
    async with running_frontend(admin_api_key=("another", ADMIN)) as frontend:
        frontend.engine.script.calls["reset_prefix_cache"] = ""
        yield frontend


async def test_a_reset_reaches_every_ready_engine(controlled: Frontend) -> None:
    await controlled.add_engine()
    await controlled.add_engine(ready=False)
    for engine in controlled.engines:
        engine.script.calls["reset_prefix_cache"] = ""
    async with controlled.http(**ADMIN_HEADER) as client:
        answer = await client.post(RESET)
    assert answer.status_code == 200
    assert [engine["rank"] for engine in answer.json()["engines"]] == [0, 1]
    assert [engine.seen.calls for engine in controlled.engines] == [["reset_prefix_cache"]] * 2 + [[]]


async def test_an_engine_that_cannot_reset_is_named_with_its_reason(controlled: Frontend) -> None:
    second = await controlled.add_engine()
    second.script.calls["reset_prefix_cache"] = "3 requests hold blocks"
    async with controlled.http(**ADMIN_HEADER) as client:
        answer = await client.post(RESET)
    assert answer.status_code == 409
    message = answer.json()["error"]["message"]
    assert "in 1 of 2 engines" in message
    assert f"{second.incarnation}: 3 requests hold blocks" in message


async def test_without_an_engine_a_reset_is_503() -> None:
    async with (
        running_frontend(engine=False, admin_api_key=(ADMIN,)) as frontend,
        frontend.http(**ADMIN_HEADER) as client,
    ):
        answer = await client.post(RESET)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"


async def test_profiles_are_started_and_stopped_in_every_engine(controlled: Frontend) -> None:
    controlled.engine.script.calls |= {"start_profile": "", "stop_profile": ""}
    async with controlled.http(**ADMIN_HEADER) as client:
        started, stopped = await client.post("/start_profile"), await client.post("/stop_profile")
    assert (started.status_code, stopped.status_code) == (200, 200)
    assert controlled.engine.seen.calls == ["start_profile", "stop_profile"]
    assert [engine["rank"] for engine in stopped.json()["engines"]] == [0]


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_profile_that_fails_is_409_with_the_engines_reason(controlled: Frontend, path: str) -> None:
    controlled.engine.script.calls[path[1:]] = "CallError: profiles are off"
    async with controlled.http(**ADMIN_HEADER) as client:
        answer = await client.post(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "profile_failed")
    assert "in 1 of 1 engines" in answer.json()["error"]["message"]
    assert "profiles are off" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_a_profile_needs_an_administrator(controlled: Frontend, path: str) -> None:
    async with controlled.http() as client:
        assert (await client.post(path)).status_code == 401
    assert controlled.engine.seen.calls == []


async def test_a_reset_takes_no_parameters(controlled: Frontend) -> None:
    async with controlled.http(**ADMIN_HEADER) as client:
        answer = await client.post(f"{RESET}?reset_running_requests=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reset_running_requests")
    assert controlled.engine.seen.calls == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_reset_is_a_post(frontend: Frontend, method: str) -> None:
    async with frontend.http() as client:
        assert (await client.request(method, RESET)).status_code == 405


# ---------------------------------------------------------------------------------------------- who may


@pytest.mark.parametrize("headers", [{}, ADMIN_HEADER, {"authorization": "Bearer"}])
async def test_without_admin_keys_control_calls_are_refused(frontend: Frontend, headers: dict[str, str]) -> None:
    async with frontend.http(**headers) as client:
        answer = await client.post(RESET)
    assert _error(answer) == (403, "control_calls_disabled")
    assert "start the server with --admin-api-key KEY" in answer.json()["error"]["message"]
    assert frontend.engine.seen.calls == []


async def test_every_control_call_needs_an_admin_key(controlled: Frontend) -> None:
    changing = [route for route in control.router.routes if isinstance(route, LeanRoute) and route.method != "GET"]
    assert changing
    async with controlled.http() as client:
        for route in changing:
            assert _error(await client.request(route.method, route.path)) == (401, "missing_api_key")
        document = (await client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for route in changing:
        operation = document["paths"][route.path_format][route.method.lower()]
        assert operation["security"] == [{"key": []}]
        assert {"401", "403"} <= operation["responses"].keys()


def test_dependencies_that_a_route_would_not_call_are_rejected() -> None:
    async def endpoint() -> Response:
        return Response()

    with pytest.raises(TypeError, match="/x: `dependencies` would not be called"):
        new_router().post("/x", dependencies=[Depends(require_admin)])(endpoint)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (401, "missing_api_key")),
        ("Bearer", (401, "missing_api_key")),
        (f"Basic {ADMIN}", (401, "missing_api_key")),
        ("Bearer wrong", (401, "invalid_api_key")),
        (f"Bearer {ADMIN}x", (401, "invalid_api_key")),
    ],
)
@pytest.mark.parametrize("api_key", [(), ("a-key",)])
async def test_a_control_call_needs_an_admin_key(
    api_key: tuple[str, ...], header: str | None, expected: tuple[int, str]
) -> None:
    async with running_frontend(api_key=api_key, admin_api_key=(ADMIN,)) as frontend, frontend.http() as client:
        answer = await client.post(RESET, headers={"authorization": header} if header else {})
        calls = frontend.engine.seen.calls
    assert _error(answer) == expected
    assert answer.headers["www-authenticate"] == "Bearer"
    assert calls == []


async def test_an_ordinary_api_key_allows_no_control_call() -> None:
    async with running_frontend(api_key=("a-key",), admin_api_key=(ADMIN,)) as frontend:
        async with frontend.http(authorization="Bearer a-key") as client:
            assert (await client.get("/v1/models")).status_code == 200
            answer = await client.post(RESET)
        calls = frontend.engine.seen.calls
    assert _error(answer) == (403, "admin_api_key_required")
    assert calls == []


async def test_an_admin_key_is_accepted_for_all_requests() -> None:
    async with running_frontend(api_key=("a-key",), admin_api_key=(ADMIN,)) as frontend:
        frontend.engine.script.calls["reset_prefix_cache"] = ""
        async with frontend.http(**ADMIN_HEADER) as client:
            assert (await client.get("/v1/models")).status_code == 200
            assert (await client.post(RESET)).status_code == 200


async def test_admin_keys_alone_leave_the_api_open(controlled: Frontend) -> None:
    async with controlled.http() as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_mounted_admin_keys_change_without_unreadiness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    async with running_frontend(admin_api_key_dir=str(tmp_path)) as frontend:
        frontend.engine.script.calls["reset_prefix_cache"] = ""
        async with frontend.http(**ADMIN_HEADER) as client:
            empty = await client.post(RESET)
            assert (await client.get("/health/ready")).status_code == 200
            (tmp_path / "key").write_text(ADMIN)
            assert (await client.post(RESET)).status_code == 200
            (tmp_path / "key").write_text("rotated!")
            revoked = await client.post(RESET)
    assert _error(empty) == (403, "control_calls_disabled")
    assert str(tmp_path) not in empty.text, "only the log names files"
    assert _error(revoked) == (401, "invalid_api_key")


@pytest.mark.parametrize("origins", [(), ("https://page.example",), ("*",)])
async def test_no_web_page_reaches_a_control_call(origins: tuple[str, ...]) -> None:
    """A browser sends text/plain to other origins without asking first: such a request has no key."""
    simple = {"origin": "https://page.example", "content-type": "text/plain", "cookie": f"key={ADMIN}"}
    async with running_frontend(admin_api_key=(ADMIN,), allowed_origins=origins) as frontend:
        async with frontend.http(**simple) as client:
            answer = await client.post(RESET, content=b"{}")
        calls = frontend.engine.seen.calls
    assert _error(answer) == (401, "missing_api_key")
    assert calls == []


# ---------------------------------------------------------------------------------------------- load


async def test_the_load_is_that_of_the_server_and_of_each_engine(frontend: Frontend) -> None:
    await frontend.add_engine(ready=False)
    async with frontend.http() as client:
        idle = (await client.get("/load")).json()
        frontend.engine.script.pause_at = 1
        async with client.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True}) as answer:
            await anext(answer.aiter_lines())
            busy = (await client.get("/load")).json()
    assert (idle["server_load"], busy["server_load"]) == (0, 1)
    assert idle["max_live_requests"] == frontend.config.server.max_live_requests
    first, second = busy["engines"]
    assert (first["rank"], first["usable"], first["running"], first["waiting"]) == (0, True, 1, 0)
    assert 0 < first["kv_cache_usage"] < 1
    assert (second["rank"], second["usable"], second["running"], second["kv_cache_usage"]) == (1, False, None, None)


def _error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]
