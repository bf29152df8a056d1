"""/load and /reset_prefix_cache."""

import pytest

from runtime.frontend.harness import Frontend, running_frontend

RESET = "/reset_prefix_cache"


async def test_a_reset_reaches_every_ready_engine(frontend: Frontend) -> None:
    await frontend.add_engine()
    await frontend.add_engine(ready=False)
    for engine in frontend.engines:
        engine.script.calls["reset_prefix_cache"] = ""
    async with frontend.http() as client:
        answer = await client.post(RESET)
    assert answer.status_code == 200
    assert [engine["rank"] for engine in answer.json()["engines"]] == [0, 1]
    assert [engine.seen.calls for engine in frontend.engines] == [["reset_prefix_cache"]] * 2 + [[]]


async def test_an_engine_that_cannot_reset_is_named_with_its_reason(frontend: Frontend) -> None:
    second = await frontend.add_engine()
    frontend.engine.script.calls["reset_prefix_cache"] = ""
    second.script.calls["reset_prefix_cache"] = "3 requests hold blocks"
    async with frontend.http() as client:
        answer = await client.post(RESET)
    assert answer.status_code == 409
    message = answer.json()["error"]["message"]
    assert "in 1 of 2 engines" in message
    assert f"{second.incarnation}: 3 requests hold blocks" in message


async def test_without_an_engine_a_reset_is_503() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        answer = await client.post(RESET)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"


async def test_a_reset_takes_no_parameters(frontend: Frontend) -> None:
    async with frontend.http() as client:
        answer = await client.post(f"{RESET}?reset_running_requests=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reset_running_requests")
    assert frontend.engine.seen.calls == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_reset_is_a_post(frontend: Frontend, method: str) -> None:
    async with frontend.http() as client:
        assert (await client.request(method, RESET)).status_code == 405


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
