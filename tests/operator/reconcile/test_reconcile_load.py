"""A service that is scaled by its load, with an operator that may end at any time."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedLoad, StatusReport
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, POD, STATEFUL_SET
from kvasir_operator.load_polls import POLL_SECONDS
from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.resources.names import RANKS_ANNOTATION
from mock_cluster import MockCluster
from mock_operator import MockReports, Operator

ROWS = 8
BY_LOAD = {"minRanks": 1, "maxRanks": 4, "targets": {"queueSeconds": 2}, "scaleDownAfter": "2m"}


class LoadedReports(MockReports):
    """A fake frontend with this many live requests, and engines that compute ROWS each."""

    def __init__(self, cluster: MockCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.live = 0

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, StatusReport]:
        engines = sum("engine" in name for name in self.cluster.names(POD))
        running = min(self.live, ROWS * engines)
        waiting = self.live - running
        load = ReportedLoad(30.0, engines, self.live, running, waiting, running, 9.0 if waiting else 0.0, 0.1, 0.1)
        fronts = {pod.uid: StatusReport(Phase.READY, load=load) for pod in pods if pod.component == "frontend"}
        return {**await super().of(pods), **fronts}


class Loaded:
    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.reports = LoadedReports(operator.cluster)
        self.sizes: list[int] = []
        self.restart()

    def restart(self) -> None:
        self.operator.reports = self.reports
        self.operator.restart()

    @property
    def size(self) -> int:
        return int(self.stateful_set["spec"]["replicas"])

    @property
    def stateful_set(self) -> dict[str, Any]:
        return self.operator.cluster.of(STATEFUL_SET, "demo-engine")

    async def pass_time(self, seconds: float, *, restarts: bool = False) -> None:
        for _ in range(int(seconds / POLL_SECONDS)):
            before = self.sizes[-1:]
            await self.operator.once()
            self.operator.cluster.run_controllers()
            if self.sizes[-1:] != [self.size]:
                self.sizes.append(self.size)
            if restarts and before != self.sizes[-1:]:
                self.restart()
                await self.operator.once()
            self.operator.clock.seconds += POLL_SECONDS
            await self.operator.reconciler._load_polls.poll(Key("default", "demo"))


@pytest.fixture
async def loaded(operator: Operator) -> Loaded:
    loaded = Loaded(operator)
    operator.cluster.add_service(autoscaling=BY_LOAD, engine={"dataParallelSize": 1})
    await operator.settle()
    return loaded


@pytest.mark.parametrize("restarts", [False, True])
async def test_engines_follow_the_load(loaded: Loaded, *, restarts: bool) -> None:
    """`restarts`: a new operator takes over after each change of the size."""
    await loaded.pass_time(120.0, restarts=restarts)
    loaded.reports.live = 22
    await loaded.pass_time(300.0, restarts=restarts)
    assert (loaded.size, loaded.stateful_set["metadata"]["annotations"][RANKS_ANNOTATION]) == (3, "3")
    loaded.reports.live = 2
    await loaded.pass_time(600.0, restarts=restarts)
    assert loaded.sizes == [1, 3, 2, 1]
    events = [message for reason, message in loaded.operator.cluster.recorded_events if reason == "Rescaled"]
    assert events == [
        "3 engines instead of 1: requests wait 9.0 s for an engine (target 2 s)",
        "2 engines instead of 3: no target was missed for 120 s",
        "1 engine instead of 2: no target was missed for 120 s",
    ]


async def test_an_operator_killed_before_the_status_keeps_the_size(loaded: Loaded) -> None:
    loaded.reports.live = 22
    await loaded.pass_time(60.0)
    assert loaded.size == 3
    status = loaded.operator.cluster.of(INFERENCE_SERVICE, "demo")["status"]
    status["engines"]["desired"] = 1
    status.pop("autoscaling", None)
    loaded.restart()
    await loaded.pass_time(60.0)
    assert loaded.sizes == [1, 3]


async def test_an_idle_service_costs_no_requests(loaded: Loaded) -> None:
    await loaded.pass_time(300.0)
    loaded.operator.cluster.calls.clear()
    for _ in range(60):
        loaded.operator.clock.seconds += POLL_SECONDS
        await loaded.operator.reconciler._load_polls.poll(Key("default", "demo"))
    assert not loaded.operator.cluster.calls


async def test_removed_targets_give_the_number_back(loaded: Loaded) -> None:
    loaded.reports.live = 22
    await loaded.pass_time(60.0)
    loaded.operator.cluster.change_service(
        autoscaling={"minRanks": 1, "maxRanks": 4}, engine={"dataParallelSize": 2}
    )
    for _ in range(3):
        await loaded.operator.later(5.0)
    assert loaded.size == 2
    assert RANKS_ANNOTATION not in loaded.stateful_set["metadata"]["annotations"]
    assert not loaded.operator.reconciler._load_polls._followed
