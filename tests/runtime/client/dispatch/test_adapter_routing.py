"""Requests for a LoRA adapter go to engines that accept adapters, and rather to those that hold it."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvasir.client.dispatch.router import ADAPTER_SECONDS
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.link.protocol import FEATURE_LORA, AdaptersHeld, Dead
from runtime.client.dispatch.test_router import Request, Traffic
from runtime.frontend.harness import ANSWER, Frontend, running_frontend, script_for
from runtime.hub.adapters.adapter_files import write_adapter

BODY: dict[str, Any] = {"model": "sql", "prompt": "Hello", "max_tokens": 40}


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    return write_adapter(tmp_path)


async def complete(frontend: Frontend) -> tuple[int, str]:
    async with frontend.http() as http:
        answer = await http.post("/v1/completions", json=BODY)
    return answer.status_code, answer.text


def test_an_engine_that_holds_the_adapter_is_preferred() -> None:
    traffic = Traffic("a", "b", "c")
    traffic.engines["b"].adapters = frozenset({"sql"})
    assert [traffic.send(Request(adapter_digest="sql")) for _ in range(3)] == ["b", "b", "b"]
    assert traffic.pick(Request(adapter_digest="other")) != "b"  # b is the busiest one


def test_a_sent_adapter_counts_before_it_is_reported() -> None:
    traffic = Traffic("a", "b", "c")
    first = traffic.send(Request(adapter_digest="sql"))
    assert traffic.pick(Request(adapter_digest="sql")) == first
    traffic.now += 60.0  # the engine does not hold it any more
    traffic.send()
    assert traffic.pick(Request(adapter_digest="sql")) != first


def test_an_adapter_costs_no_more_balance_than_its_reading() -> None:
    """With rows of 2 s, a row of 64 costs 1/32 s: 16 rows weigh as much as reading the adapter."""
    traffic = Traffic("a", "b")
    traffic.engines["a"].adapters = frozenset({"sql"})
    places = Counter(traffic.send(Request(adapter_digest="sql")) for _ in range(64))
    assert places["b"] >= 64 // 2 - ADAPTER_SECONDS * 32 / 2
    plain = Traffic("a", "b")
    plain.engines["a"].adapters = frozenset({"sql"})
    assert Counter(plain.send() for _ in range(64)) == {"a": 32, "b": 32}


async def test_an_engine_without_adapters_does_not_get_the_request(sql: Path) -> None:
    async with running_frontend(lora_modules=(f"sql={sql}",)) as frontend:
        accepting = await frontend.add_engine(features=(FEATURE_LORA,))
        for _ in range(4):
            assert (await complete(frontend))[0] == 200
        assert (len(accepting.seen.requests), len(frontend.engine.seen.requests)) == (4, 0)


async def test_a_request_fails_if_no_engine_accepts_adapters(sql: Path) -> None:
    async with running_frontend(lora_modules=(f"sql={sql}",)) as frontend:
        status, text = await complete(frontend)
        assert (status, "start the engines with --enable-lora" in text) == (503, True)


async def test_a_request_moves_with_its_adapter(sql: Path) -> None:
    async with running_frontend(engine=False, lora_modules=(f"sql={sql}",)) as frontend:
        script = script_for()
        script.pause_at = 0
        first = await frontend.add_engine(script, features=(FEATURE_LORA,))
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(complete(frontend))
            await asyncio.to_thread(first.wait_requests, 1)
            await frontend.add_engine()  # it accepts no adapters
            other = await frontend.add_engine(features=(FEATURE_LORA,))
            await asyncio.to_thread(first.close, Dead("the test ends it"))
        status, text = answer.result()
        assert (status, ANSWER in text) == (200, True)
        (moved,) = other.seen.requests
        assert moved.adapter == read_adapter(str(sql)).named("sql")
        assert moved.attempt == 2


async def test_the_frontend_learns_the_adapters_of_an_engine(sql: Path) -> None:
    async with running_frontend(engine=False) as frontend:
        engine = await frontend.add_engine(features=(FEATURE_LORA,))
        adapter = read_adapter(str(sql)).named("sql")
        engine.show_adapters(AdaptersHeld((adapter,)))
        known = frontend.service.llm.engines[engine.incarnation]
        await frontend.until(lambda: known.adapters == {adapter.digest})
