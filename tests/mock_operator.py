"""The operator's reconciler with a mock cluster and a clock that the test sets."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import StatusReport
from kvasir_operator.cluster.events import Events
from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.operator_metrics import ServiceMetrics
from kvasir_operator.reconciler import STATUS_INTERVAL_SECONDS, Reconciler
from kvasir_operator.resources.release import Release
from kvasir_operator.upgrades import Upgrades
from mock_cluster import Clock, MockCluster
from operator_facts import RELEASE


class MockReports(StatusReports):
    """Every ready pod responds, and all frontends have accepted every engine."""

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, StatusReport]:
        frontends = tuple(address for pod in pods if pod.component == "frontend" for address in pod.addresses)
        return {pod.uid: StatusReport(Phase.READY, links=frontends) for pod in pods if pod.ready}

    async def set_gates(self, pods: Mapping[Pod, bool]) -> None:
        pass

    async def wait_for_demand(self, pod: Pod) -> StatusReport | None:
        return await asyncio.Future()  # until it is cancelled


@dataclass
class Operator:
    """An operator process. `restart` creates another one for the same cluster."""

    cluster: MockCluster
    clock: Clock
    reports: StatusReports = field(default_factory=MockReports)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(
        self,
        release: Release = RELEASE,
        upgrades: int = 0,
        operator_class: str = "",
        metrics: ServiceMetrics | None = None,
    ) -> None:
        self.reconciler = Reconciler(
            self.cluster,
            release,
            Events(self.cluster, clock=self.clock.monotonic),
            self.reports,
            operator_class=operator_class,
            upgrades=Upgrades(upgrades),
            metrics=metrics,
            monotonic=self.clock.monotonic,
            now=self.clock.now,
        )

    async def once(self, name: str = "demo") -> float | None:
        return await self.reconciler.reconcile(Key("default", name))

    async def settle(self, name: str = "demo") -> None:
        """Reconcile until nothing is left to do. The controllers act after each pass."""
        for _ in range(6):
            await self.once(name)
            self.cluster.run_controllers()
            self.clock.seconds += STATUS_INTERVAL_SECONDS
        assert await self.once(name) is None
        assert self.cluster.condition("Progressing", name) == ("False", "AsDesired")

    async def later(self, seconds: float = STATUS_INTERVAL_SECONDS) -> float | None:
        self.clock.seconds += seconds
        return await self.once()
