"""LoRA adapters of a frontend: a request that names one carries it to an engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.options import ConfigError
from kvasir.frontend.endpoints import lora_adapters
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.link.protocol import FEATURE_LORA
from runtime.frontend.harness import MODEL, Frontend, eventually, running_frontend, script_for
from runtime.hub.adapters.adapter_files import write_adapter

ADMIN = "sk-admin"
KEY = {"Authorization": f"Bearer {ADMIN}"}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
GENERATING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"input": "Hello"}),
    ("/v1/messages", {**CHAT, "max_tokens": 4}),
    ("/invocations", CHAT),
]


@pytest.fixture
def sql(tmp_path: Path) -> str:
    return str(write_adapter(tmp_path / "sql"))


@asynccontextmanager
async def adapted(*modules: str, **settings: Any) -> AsyncIterator[Frontend]:
    async with running_frontend(engine=False, lora_modules=modules, **settings) as frontend:
        await frontend.add_engine(features=(FEATURE_LORA,))
        yield frontend


async def names(frontend: Frontend) -> list[str]:
    async with frontend.http() as http:
        return [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize(("path", "body"), GENERATING)
async def test_a_request_for_an_adapter_carries_it(path: str, body: dict[str, Any], sql: str) -> None:
    async with adapted(f"sql={sql}") as frontend, frontend.http() as http:
        for model in ("sql", MODEL):
            answer = await http.post(path, json={**body, "model": model})
            assert (answer.status_code, answer.json()["model"]) == (200, model)
        with_adapter, without = frontend.engine.seen.requests
        assert with_adapter.adapter == read_adapter(sql).named("sql")
        assert without.adapter is None


async def test_adapters_are_listed_with_their_parent(sql: str) -> None:
    tone = json.dumps({"name": "tone", "path": sql, "base_model_name": "org/base"})
    async with adapted(tone, f"sql={sql}") as frontend, frontend.http() as http:
        models = {model["id"]: model for model in (await http.get("/v1/models")).json()["data"]}
        assert list(models) == [MODEL, "demo-alias", "sql", "tone"]
        assert [models[name]["parent"] for name in (MODEL, "sql", "tone")] == [None, MODEL, "org/base"]
        assert models["sql"]["root"] == sql
        assert (await http.get("/v1/models/sql")).json() == models["sql"]
        tokens = {"model": "sql", "prompt": "Hello"}
        assert (await http.post("/tokenize", json=tokens)).status_code == 200
        missing = await http.post("/v1/completions", json={"model": "other", "prompt": "Hello"})
        assert missing.status_code == 404
        assert "use 'demo' or 'demo-alias' or 'sql' or 'tone'" in missing.json()["error"]["message"]


async def test_an_adapter_may_not_have_the_name_of_the_model(sql: str) -> None:
    with pytest.raises(ConfigError, match=f"--lora-modules {MODEL}: {MODEL} is a name of the model"):
        async with adapted(f"{MODEL}={sql}"):
            pass


async def test_one_of_two_loads_of_a_name_is_refused(sql: str) -> None:
    async with adapted(admin_api_key=(ADMIN,)) as frontend, frontend.http(**KEY) as http:
        body = {"lora_name": "sql", "lora_path": sql}
        answers = await asyncio.gather(*(http.post("/v1/load_lora_adapter", json=body) for _ in range(2)))
        assert sorted(answer.status_code for answer in answers) == [200, 400]


async def test_an_administrator_loads_and_unloads_adapters(sql: str, tmp_path: Path) -> None:
    body = {"lora_name": "sql", "lora_path": sql}
    other = str(write_adapter(tmp_path / "other", seed=1))
    async with adapted(admin_api_key=(ADMIN,)) as frontend, frontend.http(**KEY) as http:
        assert (
            await http.post("/v1/load_lora_adapter", json=body, headers={"Authorization": ""})
        ).status_code == 401
        loaded = await http.post("/v1/load_lora_adapter", json=body)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        again = await http.post("/v1/load_lora_adapter", json={**body, "lora_path": other})
        assert (again.status_code, "already been loaded" in again.text) == (400, True)
        await http.post("/v1/load_lora_adapter", json={**body, "lora_path": other, "load_inplace": True})
        await http.post("/v1/completions", json={"model": "sql", "prompt": "Hello"})
        (request,) = frontend.engine.seen.requests
        assert request.adapter == read_adapter(other).named("sql")
        unusable = await http.post("/v1/load_lora_adapter", json={"lora_name": "a\nb", "lora_path": sql})
        assert (unusable.status_code, "printable characters" in unusable.text) == (400, True)
        missing = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/no/such"})
        assert (missing.status_code, "/no/such does not exist" in missing.text) == (404, True)
        unloaded = await http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
        assert (unloaded.status_code, await names(frontend)) == (200, [MODEL, "demo-alias"])
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 404


async def test_a_full_frontend_still_replaces_adapters(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_adapters, "MAX_ADAPTERS", 1)
    async with adapted(f"sql={sql}", admin_api_key=(ADMIN,)) as frontend, frontend.http(**KEY) as http:
        another = await http.post("/v1/load_lora_adapter", json={"lora_name": "tone", "lora_path": sql})
        assert (another.status_code, "which is the limit" in another.text) == (400, True)
        body = {"lora_name": "sql", "lora_path": sql, "load_inplace": True}
        assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        ({}, 403, "--allow-runtime-lora-updating"),
        ({"allow_runtime_lora_updating": True}, 200, "added successfully"),
        ({"allow_runtime_lora_updating": True, "admin_api_key": (ADMIN,)}, 401, "admin API key"),
        ({"allow_runtime_lora_updating": True, "api_server_count": 2}, 403, "2 frontends"),
    ],
)
async def test_who_may_load_adapters(settings: Any, status: int, words: str, sql: str) -> None:
    async with adapted(**settings) as frontend, frontend.http() as http:
        answer = await http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": sql})
        assert (answer.status_code, words in answer.text) == (status, True), answer.text


async def test_an_adapter_is_not_loaded_without_engines_for_it(sql: str) -> None:
    async with running_frontend(allow_runtime_lora_updating=True) as frontend, frontend.http() as http:
        answer = await http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": sql})
        assert (answer.status_code, "--enable-lora" in answer.text) == (400, True)


async def test_metrics_name_the_adapters_in_use(sql: str) -> None:
    script = script_for()
    script.pause_at = 1
    async with running_frontend(engine=False, lora_modules=(f"sql={sql}", f"tone={sql}")) as frontend:
        engine = await frontend.add_engine(script, features=(FEATURE_LORA,))
        async with frontend.http() as http, asyncio.TaskGroup() as group:

            async def series() -> str:
                text = (await http.get("/metrics")).text
                return next(line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{"))

            body = {"model": "sql", "prompt": "Hello", "max_tokens": 4}
            answer = group.create_task(http.post("/v1/completions", json=body))

            async def runs() -> bool:
                return 'running_lora_adapters="sql"' in await series()

            await eventually(runs)
            assert 'waiting_lora_adapters=""' in await series()
            engine.resume()
            assert (await answer).status_code == 200
            assert 'running_lora_adapters=""' in await series()
