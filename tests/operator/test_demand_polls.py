"""The long polls of frontends at zero: one per frontend, paced, and no reconcile without demand."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator import demand_polls
from kvasir_operator.demand_polls import DemandPolls
from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from operator_facts import pod

DEMO = Key("default", "demo")
AFTER = 60.0
PATIENCE_SECONDS = 30.0


def report(live: int = 0, request: float | None = None) -> StatusReport:
    return StatusReport(Phase.READY, live_requests=live, demand=ReportedDemand(False, request, None))


class ScriptedReports(StatusReports):
    def __init__(self) -> None:
        super().__init__()
        self.polls: dict[str, asyncio.Queue[StatusReport | None]] = {}
        self.asked: list[str] = []
        self.waiting: set[str] = set()
        self.changed = asyncio.Event()

    async def wait_for_demand(self, pod: Pod) -> StatusReport | None:
        self.asked.append(pod.name)
        self.waiting.add(pod.name)
        self.changed.set()
        try:
            return await self.polls.setdefault(pod.name, asyncio.Queue()).get()
        finally:
            self.waiting.discard(pod.name)
            self.changed.set()

    def respond(self, name: str, response: StatusReport | None) -> None:
        self.polls[name].put_nowait(response)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Bench:
    def __init__(self) -> None:
        self.reports = ScriptedReports()
        self.woken: list[Key] = []
        self.polls = DemandPolls(self.reports, self.woken.append)

    async def next_poll(self, name: str, response: StatusReport | None) -> None:
        before = self.reports.asked.count(name)
        self.reports.respond(name, response)
        await self.reports.until(lambda: self.reports.asked.count(name) > before)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(demand_polls, "MIN_POLL_SECONDS", 0.0)
    monkeypatch.setattr(demand_polls, "RETRY_SECONDS", 0.0)
    bench = Bench()
    yield bench
    await bench.polls.close()


def test_a_poll_that_returns_at_once_is_not_repeated_at_once() -> None:
    assert (demand_polls.MIN_POLL_SECONDS, demand_polls.RETRY_SECONDS) == (1.0, 5.0)


async def test_demand_wakes_the_service(bench: Bench) -> None:
    bench.polls.follow(DEMO, [pod("a", "frontend"), pod("b", "frontend")], AFTER)
    await bench.reports.until(lambda: bench.reports.waiting == {"a", "b"})
    await bench.next_poll("a", report())
    await bench.next_poll("a", report(request=AFTER))
    assert bench.woken == []
    await bench.next_poll("b", report(live=1, request=0.0))
    assert bench.woken == [DEMO]
    await bench.next_poll("a", report(request=AFTER - 1))
    assert bench.woken == [DEMO, DEMO]


async def test_a_frontend_that_stops_answering_wakes_once(bench: Bench) -> None:
    bench.polls.follow(DEMO, [pod("a", "frontend")], AFTER)
    await bench.reports.until(lambda: bench.reports.waiting == {"a"})
    for response, woken in ((report(), 0), (None, 1), (None, 1), (report(), 2), (report(), 2), (None, 3)):
        await bench.next_poll("a", response)
        assert len(bench.woken) == woken


async def test_each_frontend_has_one_poll(bench: Bench) -> None:
    for _ in range(3):
        bench.polls.follow(DEMO, [pod("a", "frontend")], AFTER)
        await bench.reports.until(lambda: bench.reports.waiting == {"a"})
    assert bench.reports.asked == ["a"]


async def test_frontends_that_are_gone_are_not_polled(bench: Bench) -> None:
    bench.polls.follow(DEMO, [pod("a", "frontend"), pod("b", "frontend")], AFTER)
    await bench.reports.until(lambda: bench.reports.waiting == {"a", "b"})
    bench.polls.follow(DEMO, [pod("b", "frontend"), pod("c", "frontend"), pod("d", "frontend", ip="")], AFTER)
    await bench.reports.until(lambda: bench.reports.waiting == {"b", "c"})


@pytest.mark.parametrize("end", ["engines", "forget", "close"])
async def test_polls_end(bench: Bench, end: str) -> None:
    bench.polls.follow(DEMO, [pod("a", "frontend")], AFTER)
    await bench.reports.until(lambda: bench.reports.waiting == {"a"})
    if end == "engines":
        bench.polls.follow(DEMO, [], AFTER)
    elif end == "forget":
        bench.polls.forget(DEMO)
    else:
        await bench.polls.close()
    await bench.reports.until(lambda: not bench.reports.waiting)
    assert not bench.polls.keys
