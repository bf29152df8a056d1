"""An adapter is added, changed and removed under load: no request fails, and no process is replaced."""

import asyncio
import json
from pathlib import Path

import httpx

from kvasir_contract.status_report import adapter_list_digest
from runtime.hub.adapters.adapter_files import Shapes, write_adapter
from service.running import Service, running

SHAPES: Shapes = {f"model.layers.{layer}.mlp.down_proj": (384, 256) for layer in range(3)}  # of the demo model
BODY = {"prompt": "Kvasir is", "max_tokens": 24, "temperature": 0}


class Clients:
    """Clients that ask for the models in `names` until they are stopped."""

    def __init__(self, http: httpx.AsyncClient, names: list[str]) -> None:
        self._http = http
        self.names = names
        self.texts: dict[str, set[str]] = {}
        self.num_answers = 0
        self._changed = asyncio.Condition()

    async def answered(self, count: int) -> None:
        """Return after so many answers."""
        last = self.num_answers + count
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self.num_answers >= last)

    async def run(self) -> None:
        while self.names:
            for name in [*self.names]:
                answer = await self._http.post("/v1/completions", json={**BODY, "model": name})
                assert answer.status_code == 200, answer.text
                self.texts.setdefault(name, set()).add(answer.json()["choices"][0]["text"])
                async with self._changed:
                    self.num_answers += 1
                    self._changed.notify_all()


def write_list(file: Path, **sources: Path) -> dict[str, object]:
    """Return what a frontend reports when it has read the list."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"name": name, "source": str(source)} for name, source in sources.items()]))
    new.rename(file)
    return {"list": adapter_list_digest(file.read_bytes()), "served": len(sources), "problems": []}


async def read_by_all(service: Service, expected: dict[str, object]) -> None:
    for part in service.parts():
        if part.name == "frontend":
            async with asyncio.timeout(30), httpx.AsyncClient(base_url=part.ops) as http:
                while (await http.get("/status")).json()["adapters"] != expected:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)


def test_adapters_change_under_load(tmp_path: Path) -> None:
    first, second = (write_adapter(tmp_path / str(seed), SHAPES, seed=seed) for seed in (1, 2))
    file = tmp_path / "adapters.json"
    file.write_text("[]")
    options = ("--lora-modules-file", str(file), "--served-model-name", "demo", "--threads", "1")
    several = ("--api-server-count", "2", "--data-parallel-size", "2")
    with running("serve", "demo://", "--port", "0", *several, *options) as service:
        asyncio.run(_change(service, file, first, second))


async def _change(service: Service, file: Path, first: Path, second: Path) -> None:
    before = [part.pid for part in service.parts()]
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        clients = Clients(http, ["demo"])
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(clients.run())
            await read_by_all(service, write_list(file, sql=first))
            clients.names.append("sql")
            await clients.answered(8)
            await read_by_all(service, write_list(file, sql=second))
            await clients.answered(16)
            clients.names.remove("sql")
            await clients.answered(8)  # with them, those that were on their way
            await read_by_all(service, write_list(file))
            clients.names.clear()
        missing = await http.post("/v1/completions", json={**BODY, "model": "sql"})
        assert missing.status_code == 404
    assert len(clients.texts["demo"]) == 1
    assert len(clients.texts["sql"]) == 2
    assert clients.texts["sql"].isdisjoint(clients.texts["demo"])
    assert [part.pid for part in service.parts()] == before
