"""A service that goes to zero and wakes: an operator, its cluster, and frontends that behave as theirs do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator.cluster.cluster_client import ClusterError
from kvasir_operator.cluster.kinds import POD, STATEFUL_SET
from kvasir_operator.observe.observed import Pod
from kvasir_operator.resources.release import Release
from mock_cluster import Clock, MockCluster
from mock_operator import MockReports, Operator
from operator_facts import RELEASE

AFTER: Final = 60.0
"""Seconds without a request after which the service goes to zero."""
ENGINES: Final = "demo-engine"


@dataclass
class FakeFrontend:
    clock: Clock
    held: int = 0
    running: int = 0
    closed_until: float = 0.0
    last_request: float | None = None
    engine_since: float | None = None
    responds: bool = True

    @property
    def closed(self) -> bool:
        return self.clock.seconds < self.closed_until

    def request(self) -> None:
        self.held += 1
        self.last_request = self.clock.seconds

    def advance(self, *, engine: bool) -> int:
        """Send held requests to the engine if there is one, and finish those that it had. Return how many ended."""
        if not engine:
            self.engine_since = None
            self.held, self.running = self.held + self.running, 0  # a drained engine gives them back
            return 0
        self.engine_since = self.clock.seconds if self.engine_since is None else self.engine_since
        ended, self.running = self.running, 0
        if not self.closed:
            self.running, self.held = self.held, 0
        if ended:
            self.last_request = self.clock.seconds
        return ended

    def report(self) -> StatusReport:
        now, live = self.clock.seconds, self.held + self.running
        request = 0.0 if live else None if self.last_request is None else now - self.last_request
        engine = None if self.engine_since is None else now - self.engine_since
        return StatusReport(Phase.READY, live_requests=live, demand=ReportedDemand(self.closed, request, engine))


class FrontendReports(MockReports):
    def __init__(self, frontends: dict[str, FakeFrontend]) -> None:
        super().__init__()
        self.frontends = frontends

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, StatusReport]:
        found = {pod.uid: self.frontends[pod.name] for pod in pods if pod.name in self.frontends}
        reports = {uid: frontend.report() for uid, frontend in found.items() if frontend.responds}
        return {**await super().of([pod for pod in pods if pod.uid not in found]), **reports}

    async def set_gates(self, pods: Mapping[Pod, bool]) -> None:
        for pod, closed in pods.items():
            frontend = self.frontends[pod.name]
            if not frontend.responds:
                continue
            if not closed:
                frontend.closed_until = 0.0
            elif not frontend.held + frontend.running:
                frontend.closed_until = frontend.clock.seconds + GATE_SECONDS


@dataclass
class World:
    """An operator, its cluster and two frontends. A tick is a second."""

    operator: Operator
    frontends: dict[str, FakeFrontend] = field(default_factory=dict)
    sent: int = 0
    answered: int = 0
    failures: int = 0
    """Reconciles that the API server failed."""
    wait: float | None = 0.0
    """Seconds until the operator looks again; None until an event."""
    replicas: list[int] = field(default_factory=list)
    """The sizes of the StatefulSet, without repetitions."""

    @property
    def cluster(self) -> MockCluster:
        return self.operator.cluster

    @property
    def size(self) -> int:
        return int(self.cluster.of(STATEFUL_SET, ENGINES)["spec"]["replicas"])

    def restart(self, release: Release = RELEASE, upgrades: int = 0) -> None:
        self.operator.reports = FrontendReports(self.frontends)
        self.operator.restart(release, upgrades)
        self.wait = 0.0

    def request(self, index: int = 0) -> None:
        """Send a request to a frontend. At zero, the long poll triggers a reconcile."""
        list(self.frontends.values())[index].request()
        self.sent += 1
        if self.size == 0:
            self.wait = 0.0

    async def tick(self, *, controllers: bool = True) -> None:
        if self.wait is not None and self.wait <= 0:
            try:
                self.wait = await self.operator.once()
            except ClusterError:
                self.failures += 1
                self.wait = 1.0
        before = set(self.cluster.names(POD))
        if controllers:
            self.cluster.run_controllers()
        for name in self.cluster.names(POD):
            if "frontend" in name:
                self.frontends.setdefault(name, FakeFrontend(self.operator.clock))
        for name in self.frontends.keys() - set(self.cluster.names(POD)):
            del self.frontends[name]
        if set(self.cluster.names(POD)) != before:
            self.wait = 0.0  # the watch
        engine = f"{ENGINES}-0" in self.cluster.names(POD)
        self.answered += sum(frontend.advance(engine=engine) for frontend in self.frontends.values())
        self.operator.clock.seconds += 1
        if self.wait is not None:
            self.wait -= 1
        if (STATEFUL_SET, "default", ENGINES) in self.cluster.objects and self.replicas[-1:] != [self.size]:
            self.replicas.append(self.size)

    async def until_size(self, size: int, limit: int = 300) -> None:
        for _ in range(limit):
            if self.size == size:
                return
            await self.tick()
        raise AssertionError(f"the engines did not become {size}: {self.cluster.ready_message()}")

    async def until_answered(self, limit: int = 60) -> None:
        for _ in range(limit):
            if self.answered == self.sent:
                return
            await self.tick()
        raise AssertionError(f"{self.sent - self.answered} requests are lost")
