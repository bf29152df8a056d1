import pytest

from kvasir import __version__
from kvasir.frontend.service import Service
from runtime.frontend.harness import MODEL, Frontend, running_frontend
from runtime.frontend.scripted import NODE


async def test_live_but_unready_until_an_engine_has_been_ready_once() -> None:
    async with running_frontend(engine=False) as frontend, frontend.http() as client:
        assert (await client.get("/health/live")).status_code == 200
        before = await client.get("/health/ready")
        assert before.status_code == 503
        assert "no engine" in before.json()["reason"]
        assert (await client.get("/health")).status_code == 503

        engine = await frontend.add_engine(ready=False)
        starting = await client.get("/health")
        assert starting.status_code == 503
        assert [(e["rank"], e["phase"], e["usable"]) for e in starting.json()["engines"]] == [
            (0, "Starting", False)
        ]
        assert (await client.get("/health/ready")).status_code == 503

        engine.announce_ready()
        await frontend.until(lambda: frontend.service.llm.gate.accepts)
        assert (await client.get("/health/ready")).status_code == 200
        serving = await client.get("/health")
        assert serving.status_code == 200
        assert serving.json()["engines"][0]["phase"] == "Ready"

        engine.close()
        frontend.engines.clear()
        await frontend.until(lambda: not frontend.service.llm.engines)
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/health")).status_code == 503


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_engines_are_listed_for_those_with_a_key_only(path: str) -> None:
    async with running_frontend(api_key=("key",)) as frontend, frontend.http() as client:
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic key"}):
            answer = await client.get(path, headers=header)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        listed = await client.get(path, headers={"authorization": "Bearer key"})
        assert [engine["rank"] for engine in listed.json()["engines"]] == [0]
        for probe in ("/health/live", "/health/ready"):
            assert (await client.get(probe)).status_code == 200


async def test_ping_answers_post_as_it_answers_get() -> None:
    async with running_frontend(api_key=("key",)) as frontend, frontend.http() as client:
        for header in ({}, {"authorization": "Bearer key"}):
            asked, posted = await client.get("/ping", headers=header), await client.post("/ping", headers=header)
            assert (posted.status_code, posted.json()) == (asked.status_code, asked.json())
            assert posted.status_code == 200
        frontend.engine.close()
        frontend.engines.clear()
        await frontend.until(lambda: not frontend.service.llm.engines)
        assert (await client.post("/ping")).status_code == 503


async def test_the_public_port_names_no_node() -> None:
    async with running_frontend(api_key=("key",)) as closed, running_frontend() as opened:
        for frontend in (closed, opened):
            assert {engine.node for engine in frontend.service.llm.engines.values()} == {NODE}
            async with frontend.http(authorization="Bearer key") as client:
                for path in ("/health", "/ping", "/load", "/metrics", "/health/live", "/health/ready", "/version"):
                    answer = await client.get(path)
                    assert answer.status_code == 200
                    assert NODE not in answer.text, path


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_are_not_held_are_503_with_retry_after(stream: bool) -> None:
    async with running_frontend(engine=False, hold_timeout=0.0) as frontend, frontend.http() as client:
        response = await client.post("/v1/completions", json={"prompt": "Hi", "stream": stream})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "engine_unavailable"


async def test_models_are_listed_by_every_served_name(frontend: Frontend) -> None:
    async with frontend.http() as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get(f"/v1/models/{MODEL}")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL, "demo-alias"]
    assert one == listed["data"][0]
    assert one["max_model_len"] == frontend.service.llm.max_model_len
    assert (one["object"], one["owned_by"], one["root"]) == ("model", "kvasir", "demo://")


async def test_a_path_with_a_route_pattern_is_a_path_like_others(frontend: Frontend) -> None:
    """Routes without parameters are found by their path, without the router."""
    async with frontend.http() as client:
        answer = await client.get("/v1/models/{name:path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_version_and_schema(frontend: Frontend) -> None:
    async with frontend.http() as client:
        assert (await client.get("/version")).json() == {"version": __version__}
        schema = (await client.get("/openapi.json")).json()
    assert "/v1/chat/completions" in schema["paths"]


async def test_two_requests_under_one_request_id_do_not_meet(frontend: Frontend) -> None:
    async with frontend.http(**{"x-request-id": "same"}) as client:
        answers = [(await client.post("/v1/completions", json={"prompt": "Hi"})).json()["id"] for _ in range(2)]
    assert len(set(answers)) == 2


async def test_defect_is_500_with_a_request_id_and_no_traceback(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Service, asked: str | None) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Service, "served", broken)
    async with frontend.http(**{"x-request-id": "mine-1"}) as client:
        response = await client.post("/v1/completions", json={"prompt": "Hi"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "mine-1"
    assert "mine-1" in response.json()["error"]["message"]
    assert "secret" not in response.text
    assert "Traceback" not in response.text
