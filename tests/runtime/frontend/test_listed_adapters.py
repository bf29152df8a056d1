"""Listed adapters are read while the frontend runs, and again when the file changes."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from kvasir.config.lora_settings import AdaptersConfig, LoraModule
from kvasir.config.options import ConfigError
from kvasir.frontend.adapters.listed_adapters import MAX_UNREADY_SECONDS, RETRY_SECONDS, ListedAdapters
from kvasir.frontend.adapters.served_adapters import ServedAdapters
from kvasir.hub.adapters.adapter_info import AdapterInfo
from kvasir.hub.hub_errors import HubError
from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest
from runtime.frontend.harness import MODEL, eventually, running_frontend
from runtime.frontend.test_adapters import adapted, names
from runtime.hub.adapters.adapter_files import write_adapter


@pytest.fixture
def sql(tmp_path: Path) -> str:
    return str(write_adapter(tmp_path / "sql"))


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


async def test_a_frontend_does_not_start_without_its_list(tmp_path: Path) -> None:
    file = tmp_path / "adapters.json"
    with pytest.raises(ConfigError, match=f"--lora-modules-file {file}: No such file"):
        async with adapted(lora_modules_file=str(file)):
            pass
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is not a list of LoRA adapters"):
        async with adapted(lora_modules_file=str(file)):
            pass


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
