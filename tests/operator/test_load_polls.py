"""The polls of the load: no reconcile while the number of engines stays."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedLoad, StatusReport
from kvasir_operator.autoscaler.load_history import STALE_SECONDS
from kvasir_operator.autoscaling_spec import AutoscalingSpec, LoadTargets
from kvasir_operator.load_polls import POLL_SECONDS, LoadPolls
from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.plan.load_scaling import LoadScaling
from operator_facts import pod

DEMO = Key("default", "demo")
SPEC = AutoscalingSpec(1, 4, targets=LoadTargets(queue_seconds=2.0))
CALM = ReportedLoad(30.0, 2, 10, 10, 0, 4, 0.0, 0.1, 0.1)
BUSY = replace(CALM, waiting=20, running=16, arrived=60, queue_seconds=9.0)
FRONTENDS = (pod("demo-frontend-a", "frontend"), pod("demo-frontend-b", "frontend"))


class LoadReports(StatusReports):
    def __init__(self) -> None:
        super().__init__()
        self.load: ReportedLoad | None = CALM
        self.asked = 0
        self.asked_thrice = asyncio.Event()

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, StatusReport]:
        self.asked += 1
        if self.asked == 3:
            self.asked_thrice.set()
        return {pod.uid: StatusReport(Phase.READY, load=self.load) for pod in pods}


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.reports = LoadReports()
        self.woken: list[Key] = []
        self.polls = LoadPolls(self.reports, self.woken.append, monotonic=lambda: self.now)

    def follow(self, ranks: int = 2, *, limited: bool = False) -> None:
        """Follow the service as a reconcile does that has decided on this number."""
        self.polls.follow(
            DEMO, SPEC, LoadScaling(ranks, limited=limited, frontends=FRONTENDS), self.polls.history(DEMO, {})
        )

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / POLL_SECONDS)):
            self.now += POLL_SECONDS
            await self.polls.poll(DEMO)


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    bench.follow()
    await bench.pass_time(60.0)
    return bench


async def test_a_load_within_its_targets_wakes_nothing(bench: Bench) -> None:
    assert bench.woken == []


async def test_a_missed_target_wakes_until_it_is_decided(bench: Bench) -> None:
    bench.reports.load = BUSY
    await bench.pass_time(10.0)
    assert bench.woken == [DEMO, DEMO]
    bench.follow(4, limited=True)
    await bench.pass_time(30.0)
    assert len(bench.woken) == 2


async def test_a_load_beyond_max_ranks_wakes_once(bench: Bench) -> None:
    bench.follow(4)
    bench.reports.load = BUSY
    await bench.pass_time(5.0)
    assert len(bench.woken) == 1
    bench.follow(4, limited=True)
    await bench.pass_time(30.0)
    assert len(bench.woken) == 1


async def test_frontends_without_a_load_wake_once(bench: Bench) -> None:
    bench.reports.load = None
    await bench.pass_time(STALE_SECONDS)
    assert bench.woken == []
    await bench.pass_time(5.0)
    assert len(bench.woken) == 1
    bench.follow()
    await bench.pass_time(60.0)
    assert len(bench.woken) == 1


async def test_a_new_history_continues_the_status(bench: Bench) -> None:
    assert bench.polls.history(DEMO, {"autoscaling": {"requestsPerRank": 5.0}}).requests_per_rank is None
    bench.polls.forget(DEMO)
    new = bench.polls.history(DEMO, {"autoscaling": {"requestsPerRank": 5.0}})
    assert (new.requests_per_rank, new.entries, new.since) == (5.0, (), 60.0)


async def test_polls_end_with_the_frontends_and_the_operator(bench: Bench) -> None:
    (task,) = [followed.task for followed in bench.polls._followed.values()]
    bench.polls.follow(DEMO, SPEC, LoadScaling(2), bench.polls.history(DEMO, {}))
    bench.follow()
    await bench.polls.close()
    assert task is not None
    assert task.cancelled()


async def test_a_poll_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir_operator.load_polls.POLL_SECONDS", 0.0)
    bench = Bench()
    bench.follow()
    await asyncio.wait_for(bench.reports.asked_thrice.wait(), 30.0)
    await bench.polls.close()
