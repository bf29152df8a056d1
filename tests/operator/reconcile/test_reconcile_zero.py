"""To zero and back, with frontends that behave as theirs do: no request is lost, in whichever phase it comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator.cluster.cluster_client import ClusterError
from kvasir_operator.cluster.kinds import DEPLOYMENT, POD, STATEFUL_SET
from kvasir_operator.observe.observed import Pod
from mock_cluster import Clock, MockCluster
from mock_operator import MockReports, Operator
from operator_facts import RELEASE

AFTER = 60.0
ENGINES = "demo-engine"


@dataclass
class FakeFrontend:
    """The gate of a frontend and its requests, by the clock of the test."""

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

    def restart(self) -> None:
        self.operator.reports = FrontendReports(self.frontends)
        self.operator.restart(RELEASE)
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


@pytest.fixture
async def world(operator: Operator) -> World:
    world = World(operator)
    world.restart()
    autoscaling = {"minRanks": 0, "toZeroAfter": f"{AFTER:g}s"}
    operator.cluster.add_service(frontend={"replicas": 2}, autoscaling=autoscaling)
    for _ in range(5):
        await world.tick()
    assert (world.size, len(world.frontends)) == (1, 2)
    return world


async def test_ten_cycles_are_alike(world: World) -> None:
    lengths = []
    for cycle in range(10):
        began = world.operator.clock.seconds
        await world.until_size(0)
        for _ in range(5):
            await world.tick()
        assert world.cluster.condition("Ready") == ("True", "ScaledToZero")
        for number in range(50):
            world.request(number % 2)
        await world.until_answered()
        assert world.cluster.condition("Ready")[0] == "True"
        assert world.answered == 50 * (cycle + 1)
        lengths.append(world.operator.clock.seconds - began)
    assert world.replicas == [1, *[0, 1] * 10]
    assert max(lengths[1:]) - min(lengths[1:]) <= 2, lengths
    assert {"ScaledToZero", "WakingUp"} <= {reason for reason, _ in world.cluster.recorded_events}


async def test_a_service_at_zero_asks_nothing(world: World) -> None:
    await world.until_size(0)
    for _ in range(10):
        await world.tick()
    assert world.wait is None
    assert world.cluster.condition("Progressing") == ("False", "ScaledToZero")


async def test_requests_keep_the_engines(world: World) -> None:
    for _ in range(10):
        for _ in range(int(AFTER) - 5):
            await world.tick()
        world.request()
    assert world.replicas == [1]
    await world.until_answered()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_request_in_each_second_of_a_cycle_is_answered(world: World, *, restarted: bool) -> None:
    """Also if the operator starts again in the same second."""
    for moment in range(int(AFTER) - 3, int(AFTER) + 12):
        await world.until_size(1)
        world.request()
        await world.until_answered()
        for _ in range(moment):
            await world.tick()
        if restarted:
            world.restart()
        world.request(moment % 2)
        await world.until_answered()
    await world.until_size(0)


async def test_an_operator_that_starts_again_each_second_goes_on(world: World) -> None:
    async def until_size(size: int) -> None:
        for _ in range(200):
            world.restart()
            await world.tick()
            if world.size == size:
                return
        raise AssertionError

    await until_size(0)
    world.request()
    await until_size(1)
    await world.until_answered()
    assert world.replicas == [1, 0, 1]


async def test_a_frontend_that_does_not_respond_keeps_the_engines(world: World) -> None:
    silent = list(world.frontends.values())[1]
    silent.responds = False
    for _ in range(300):
        await world.tick()
    assert world.replicas == [1]
    silent.responds = True
    await world.until_size(0)


async def test_gates_do_not_stay_closed_without_an_operator(world: World) -> None:
    while not all(frontend.closed for frontend in world.frontends.values()):
        await world.tick()
    world.request()
    world.wait = None  # the operator is gone
    await world.until_answered(limit=int(GATE_SECONDS) + 5)
    assert world.size == 1


async def test_engines_that_cannot_be_removed_go_on_serving(world: World) -> None:
    world.cluster.refused["apply", STATEFUL_SET] = ClusterError("admission", status=403)
    for _ in range(150):
        await world.tick()
    world.request()
    await world.until_answered()
    assert world.replicas == [1]
    del world.cluster.refused["apply", STATEFUL_SET]
    await world.until_size(0)


async def test_an_api_server_that_fails_delays_the_wake(world: World) -> None:
    await world.until_size(0)
    for _ in range(3):
        await world.tick()
    world.cluster.refused["apply", STATEFUL_SET] = ClusterError("no connection")
    world.request()
    for _ in range(5):
        await world.tick()
    assert world.failures > 0
    del world.cluster.refused["apply", STATEFUL_SET]
    await world.until_answered()


async def test_a_frontend_that_starts_at_zero_gets_the_order_that_makes_it_ready(world: World) -> None:
    await world.until_size(0)
    for _ in range(int(GATE_SECONDS) + 5):
        await world.tick()
    assert not any(frontend.closed for frontend in world.frontends.values())
    await world.operator.once()
    assert all(frontend.closed for frontend in world.frontends.values())


async def test_a_change_at_zero_starts_nothing(world: World) -> None:
    await world.until_size(0)
    world.cluster.change_service(engine={"maxNumSeqs": 8}, frontend={"replicas": 1})
    world.wait = 0.0
    for _ in range(10):
        await world.tick()
    assert world.size == 0
    template = world.cluster.of(STATEFUL_SET, ENGINES)["spec"]["template"]
    assert "8" in template["spec"]["containers"][0]["args"]
    assert world.cluster.of(DEPLOYMENT, "demo-frontend")["spec"]["replicas"] == 1


async def test_without_the_field_the_engines_come_back(world: World) -> None:
    await world.until_size(0)
    world.cluster.change_service(autoscaling={"minRanks": 2})
    world.wait = 0.0
    await world.until_size(2)
