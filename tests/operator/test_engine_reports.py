"""What engines say on their ops port, and that one that says nothing sensible is no trouble."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from kvasir_operator.engine_reports import EngineReports
from kvasir_operator.pods import EngineReport, Pod


def pod(name: str, state: str = "running", address: str = "127.0.0.1") -> Pod:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "engine"}]},
        "status": {"podIP": address, "containerStatuses": [{"name": "engine", "state": {state: {}}}]},
    }


@asynccontextmanager
async def engine(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[EngineReports]:
    application = web.Application()
    application.add_routes([web.get("/status", answer)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    reports = EngineReports(port=runner.addresses[0][1])
    yield reports
    await reports.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("progress", "expected"), [({"done": 1, "total": 2}, (1, 2)), (None, None)], ids=["loading", "not loading"]
)
async def test_a_report_is_read(progress: Any, expected: tuple[int, int] | None) -> None:
    async def answer(_: web.Request) -> web.Response:
        state = {"phase": "Loading", "progress": progress, "message": "m", "incarnation": "engine-0-1", "rank": 0}
        return web.json_response(state)

    async with engine(answer) as reports:
        assert await reports.of([pod("a")]) == {"a": EngineReport("Loading", expected, "m")}


async def test_pods_that_do_not_run_are_not_asked() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("it was asked")

    async with engine(answer) as reports:
        assert await reports.of([pod("a", "waiting"), pod("b", address="")]) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"phase": "Loading"}', "<html>"])
async def test_an_answer_without_sense_is_none(text: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    async with engine(answer) as reports:
        assert await reports.of([pod("a")]) == {}


async def test_an_engine_that_does_not_answer_holds_nobody_up() -> None:
    hang = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await hang.wait()
        return web.Response()

    async with engine(answer) as reports:
        began = asyncio.get_running_loop().time()
        assert await reports.of([pod(f"a{number}") for number in range(8)]) == {}
        assert asyncio.get_running_loop().time() - began < 3
        hang.set()
