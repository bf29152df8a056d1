from typing import Any

from kvasir_operator.cluster.cluster_client import ClusterError, Object
from kvasir_operator.cluster.events import QUIET, Events

SERVICE = {"metadata": {"name": "demo", "namespace": "default", "uid": "1"}}


class FakeCluster:
    def __init__(self) -> None:
        self.written: list[Object] = []
        self.down = False

    async def create(self, kind: object, namespace: str, resource: Object) -> Object:
        if self.down:
            raise ClusterError("no")
        self.written.append(resource)
        return resource


def events(cluster: FakeCluster, now: list[float]) -> Events:
    fake: Any = cluster
    return Events(fake, clock=lambda: now[0])


async def test_the_same_event_is_not_repeated_for_a_while() -> None:
    cluster, now = FakeCluster(), [0.0]
    recorder = events(cluster, now)
    for _ in range(3):
        await recorder.record(SERVICE, "Created", "Service demo")
    await recorder.record(SERVICE, "Created", "Secret demo-link")
    assert len(cluster.written) == 2
    now[0] = QUIET
    await recorder.record(SERVICE, "Created", "Service demo")
    assert len(cluster.written) == 3


async def test_an_event_is_about_the_service_and_has_a_name_of_its_own() -> None:
    cluster = FakeCluster()
    recorder = events(cluster, [0.0])
    await recorder.record(SERVICE, "Created", "a")
    await recorder.record(SERVICE, "Created", "b")
    first, second = cluster.written
    assert first["involvedObject"]["uid"] == "1"
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_an_event_that_cannot_be_written_stops_nothing() -> None:
    cluster = FakeCluster()
    cluster.down = True
    await events(cluster, [0.0]).record(SERVICE, "Created", "a")
