"""LoRA adapters of a frontend: a request that names one carries it to an engine."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.lora_settings import AdaptersConfig, LoraModule
from kvasir.config.options import ConfigError
from kvasir.frontend.adapters.listed_adapters import MAX_UNREADY_SECONDS, RETRY_SECONDS, ListedAdapters
from kvasir.frontend.adapters.served_adapters import ServedAdapters
from kvasir.frontend.endpoints import lora_adapters
from kvasir.hub.adapters.adapter_info import AdapterInfo, read_adapter
from kvasir.hub.hub_errors import HubError
from kvasir.link.protocol import FEATURE_LORA
from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest
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
    async with adapted(f"sql={sql}", tone) as frontend, frontend.http() as http:
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


async def test_an_unreadable_adapter_is_read_later(tmp_path: Path) -> None:
    now = 0.0
    config = AdaptersConfig(lora_modules=(f"sql={tmp_path}/sql", f"tone={write_adapter(tmp_path / 'tone')}"))
    adapters = ServedAdapters([MODEL], None)
    listed = ListedAdapters(config, adapters, clock=lambda: now)
    assert (listed.is_unread("sql"), listed.is_unread("other"), listed.delays_readiness) == (True, False, True)
    listed.tick()
    await listed.read_once.wait()
    assert ([*adapters], listed.is_unread("sql"), listed.delays_readiness) == (["tone"], False, False)
    write_adapter(tmp_path / "sql")
    adapters.remove("tone")  # by a request
    now += RETRY_SECONDS
    listed.tick()
    assert listed._task is not None
    await listed._task
    assert [*adapters] == ["sql"]


async def test_a_slow_hub_does_not_keep_the_model_from_clients(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    read = ServedAdapters._read

    def slow(adapters: ServedAdapters, module: LoraModule) -> AdapterInfo | HubError:
        released.wait()
        return read(adapters, module)

    monkeypatch.setattr(ServedAdapters, "_read", slow)
    async with running_frontend(reads_adapters=False, lora_modules=(f"sql={sql}",)) as frontend:
        listed = frontend.service.listed_adapters
        assert listed is not None
        try:
            async with frontend.http() as http:
                body = {"prompt": "Hello", "max_tokens": 4}
                assert (await http.post("/v1/completions", json=body)).status_code == 200
                early = await http.post("/v1/completions", json={**body, "model": "sql"})
                assert (early.status_code, early.headers["Retry-After"]) == (503, "1")
                assert frontend.service.unready_reason() == "the LoRA adapters are being read"
                listed._clock = lambda: listed._ready_at + MAX_UNREADY_SECONDS
                assert frontend.service.unready_reason() is None
        finally:
            released.set()
        await listed.read_once.wait()
        assert await names(frontend) == [MODEL, "demo-alias", "sql"]


async def test_one_of_two_loads_of_a_name_is_refused(sql: str) -> None:
    async with adapted(admin_api_key=(ADMIN,)) as frontend, frontend.http(**KEY) as http:
        body = {"lora_name": "sql", "lora_path": sql}
        answers = await asyncio.gather(*(http.post("/v1/load_lora_adapter", json=body) for _ in range(2)))
        assert sorted(answer.status_code for answer in answers) == [200, 400]


async def test_a_frontend_does_not_start_without_its_list(tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"
    with pytest.raises(ConfigError, match=f"--lora-modules-file {file}: No such file"):
        async with adapted(lora_modules_file=str(file)):
            pass
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is not a list of LoRA adapters"):
        async with adapted(lora_modules_file=str(file)):
            pass


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


async def test_a_changed_file_changes_the_adapters(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"

    def write(**sources: str) -> None:
        (tmp_path / "new").write_text(json.dumps([{"name": k, "source": v} for k, v in sources.items()]))
        (tmp_path / "new").rename(file)

    write(sql=sql, broken="/no/such")
    async with running_frontend(lora_modules_file=str(file)) as frontend:
        assert await names(frontend) == [MODEL, "demo-alias", "sql"]
        report = frontend.status.report().adapters
        assert report is not None
        assert (report.served, report.problems[0].partition(" does")[0]) == (1, "broken: /no/such")
        write(tone=sql)

        async def is_read() -> bool:
            return await names(frontend) == [MODEL, "demo-alias", "tone"]

        await eventually(is_read)
        changed = frontend.status.report().adapters
        assert changed is not None
        assert (changed.list != report.list, changed.problems) == (True, ())
        file.write_text("nothing")  # the adapters stay
        frontend.service.refresh_adapters()

        async def is_reported() -> bool:
            found = frontend.status.report().adapters
            return found is not None and found.problems != ()

        await eventually(is_reported)
        assert await names(frontend) == [MODEL, "demo-alias", "tone"]


async def test_a_list_is_reported_once_its_adapters_are_read(
    sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator stops asking once a frontend reports the list."""
    file, released = tmp_path / "adapters.json", threading.Event()
    adapters = ServedAdapters([MODEL], None)
    file.write_text(json.dumps([{"name": "old", "source": sql}]))
    listed = ListedAdapters(AdaptersConfig(lora_modules_file=str(file)), adapters)
    await listed.refresh()
    old, read = listed.report(), adapters._read
    assert old is not None

    def slow(module: LoraModule) -> AdapterInfo | HubError:
        if module.name == "slow":
            released.wait()
        return read(module)

    monkeypatch.setattr(adapters, "_read", slow)
    file.write_text(json.dumps([{"name": name, "source": sql} for name in ("slow", "sql")]))
    task = asyncio.create_task(listed.refresh())

    async def is_served() -> bool:
        return [*adapters] == ["sql"]  # the others do not wait for the slow one

    try:
        await eventually(is_served)
        assert (reading := listed.report()) is not None
        assert reading.list == old.list
    finally:
        released.set()
    await task
    assert listed.report() == ReportedAdapters(adapter_list_digest(file.read_bytes()), 2)
    file.write_text("nothing")
    await listed.refresh()
    faulty = listed.report()
    assert faulty is not None
    assert (faulty.list, len(faulty.problems)) == (adapter_list_digest(b"nothing"), 1)


async def test_an_adapter_above_the_rank_of_engines_is_reported(sql: str, tmp_path: Path) -> None:
    file, high = tmp_path / "adapters.json", str(write_adapter(tmp_path / "high", rank=17))
    file.write_text(json.dumps([{"name": "sql", "source": sql}, {"name": "high", "source": high}]))
    listed = ListedAdapters(AdaptersConfig(lora_modules_file=str(file)), ServedAdapters([MODEL], None))
    for max_rank, problems in (
        (0, []),
        (16, ["high: it has rank 17, and engines have --max-lora-rank 16"]),
        (17, []),
    ):
        listed.tick(max_rank)
        await listed.read_once.wait()
        report = listed.report()
        assert report is not None
        assert [problem.partition(": raise")[0] for problem in report.problems] == problems


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
