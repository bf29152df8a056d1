"""Processes that get SIGTERM while requests run: every short request is answered."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import yaml

from service.running import ROOT, Service, running

CLIENTS = 8
PATIENCE = 60.0
"""Seconds until a test that waits for an event is taken for failed."""


@asynccontextmanager
async def load(service: Service, *, keep_alive: bool = False) -> AsyncIterator[list[int]]:
    """Clients that send one short request after the other; yields the codes. Each request has a connection of its
    own, unless `keep_alive`."""
    codes: list[int] = []
    limits = httpx.Limits(max_keepalive_connections=None if keep_alive else 0)
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE, limits=limits) as http:

        async def client() -> None:
            body = {"model": "demo", "prompt": "What is", "max_tokens": 4}
            while not done.is_set():
                codes.append((await http.post("/v1/completions", json=body)).status_code)

        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(client())
            try:
                await reached(codes, CLIENTS)
                yield codes
                await reached(codes, len(codes) + CLIENTS)
            finally:
                done.set()


async def reached(codes: list[int], count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(codes) < count:  # noqa: ASYNC110 - the clients are tasks of this loop
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask another process until it agrees."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two frontends and two engines."""
    documents = list(yaml.safe_load_all((ROOT / "manifests/examples/demo.yaml").read_text()))
    documents[0]["spec"].setdefault("frontend", {})["replicas"] = 2
    manifest = tmp_path_factory.mktemp("manifest") / "two.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    with running("up", str(manifest), "--port", "0") as service:
        yield service


@pytest.mark.parametrize("number", [0, 1])
async def test_engine_that_drains_under_load_loses_no_request(service: Service, number: int) -> None:
    async with load(service) as codes, httpx.AsyncClient(base_url=service.url) as http:
        before = await _incarnations(http)
        os.kill(service.engines()[number].pid, signal.SIGTERM)

        async def replaced() -> bool:
            now = await _incarnations(http)
            return len(now) == 2 and now != before

        await until(replaced)
    assert set(codes) == {200}


@pytest.mark.parametrize("keep_alive", [False, True])
async def test_frontend_that_ends_beside_another_loses_no_request(service: Service, keep_alive: bool) -> None:
    first = next(part for part in service.parts() if part.name == "frontend")
    async with load(service, keep_alive=keep_alive) as codes:
        os.kill(first.pid, signal.SIGTERM)

        async def replaced() -> bool:
            pids = {part.pid for part in service.parts() if part.name == "frontend"}
            return len(pids) == 2 and first.pid not in pids

        await until(replaced)
    assert set(codes) == {200}


async def _incarnations(http: httpx.AsyncClient) -> set[str]:
    engines = (await http.get("/health")).json()["engines"]
    return {engine["incarnation"] for engine in engines if engine["usable"]}
