import asyncio
import copy
from typing import Any

import pytest

from kvasir_operator.cluster.cluster_client import ClusterError, ConflictError, NotFoundError, Object
from kvasir_operator.cluster.lease import Lease, LeaseLostError


class FakeCluster:
    """One Lease, with the API server's optimistic locking."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.down: ClusterError | None = None
        self._version = 0

    async def get(self, *_: object) -> Object:
        self._check()
        if self.lease is None:
            raise NotFoundError("no such Lease", status=404)
        return copy.deepcopy(self.lease)

    async def create(self, kind: object, namespace: str, resource: Object) -> Object:
        self._check()
        if self.lease is not None:
            raise ConflictError("exists", status=409)
        return self._store(resource)

    async def replace(self, kind: object, resource: Object) -> Object:
        self._check()
        if self.lease is None:
            raise NotFoundError("no such Lease", status=404)
        if resource["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("changed", status=409)
        return self._store(resource)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])

    def _check(self) -> None:
        if self.down is not None:
            raise self.down

    def _store(self, resource: Object) -> Object:
        self._version += 1
        self.lease = copy.deepcopy(resource)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(self.lease)


def candidate(cluster: FakeCluster, name: str, duration: float = 1.0) -> Lease:
    fake: Any = cluster
    return Lease(fake, namespace="default", identity=name, duration=duration)


async def within(awaitable: Any, seconds: float = 60.0) -> None:
    await asyncio.wait_for(awaitable, seconds)


async def test_the_first_leads_and_the_second_waits() -> None:
    cluster = FakeCluster()
    await within(candidate(cluster, "a").acquire())
    waiting = asyncio.create_task(candidate(cluster, "b", duration=60).acquire())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    assert cluster.holder == "a"
    waiting.cancel()


async def test_one_that_stops_is_followed_at_the_next_attempt() -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a", 0.3), candidate(cluster, "b", 0.3)
    await within(first.acquire())
    await first.release()
    assert cluster.holder == ""
    await within(second.acquire())
    assert cluster.holder == "b"
    assert cluster.lease is not None
    assert cluster.lease["spec"]["leaseTransitions"] == 1


async def test_one_that_falls_silent_is_followed_after_its_duration() -> None:
    cluster = FakeCluster()
    await within(candidate(cluster, "a").acquire())
    second = candidate(cluster, "b", 0.3)
    began = asyncio.get_running_loop().time()
    await within(second.acquire())
    assert asyncio.get_running_loop().time() - began >= 0.9  # a's second, counted from the time when b first saw it
    assert cluster.holder == "b"


async def test_a_holder_that_renews_stays() -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await within(first.acquire())
    holding, waiting = asyncio.create_task(first.hold()), asyncio.create_task(second.acquire())
    done, _ = await asyncio.wait({holding, waiting}, timeout=1.6)
    assert not done
    assert cluster.holder == "a"
    for task in (holding, waiting):
        task.cancel()


async def test_a_replaced_holder_reports_the_new_one() -> None:
    cluster = FakeCluster()
    first = candidate(cluster, "a", 0.5)
    await within(first.acquire())
    assert cluster.lease is not None
    stolen = {**cluster.lease, "spec": {**cluster.lease["spec"], "holderIdentity": "b", "leaseDurationSeconds": 60}}
    await cluster.replace(None, stolen)
    with pytest.raises(LeaseLostError, match="b"):
        await within(first.hold())
    await first.release()
    assert cluster.holder == "b"


async def test_a_holder_that_cannot_renew_ends_before_others_may_lead() -> None:
    cluster = FakeCluster()
    first = candidate(cluster, "a", 3)
    await within(first.acquire())
    cluster.down = ClusterError("the API server does not respond")
    began = asyncio.get_running_loop().time()
    with pytest.raises(LeaseLostError):
        await within(first.hold())
    assert asyncio.get_running_loop().time() - began < 3


async def test_a_short_outage_is_survived() -> None:
    cluster = FakeCluster()
    first = candidate(cluster, "a", 1.5)
    await within(first.acquire())
    cluster.down = ClusterError("the API server does not respond")
    holding = asyncio.create_task(first.hold())
    await asyncio.wait({holding}, timeout=0.5)
    cluster.down = None
    done, _ = await asyncio.wait({holding}, timeout=1.5)
    assert not done
    holding.cancel()


async def test_a_holder_keeps_a_lease_that_is_annotated_or_deleted() -> None:
    cluster = FakeCluster()
    first = candidate(cluster, "a")
    await within(first.acquire())
    holding = asyncio.create_task(first.hold())
    assert cluster.lease is not None
    await cluster.replace(
        None, {**cluster.lease, "metadata": {**cluster.lease["metadata"], "annotations": {"x": "y"}}}
    )
    await asyncio.wait({holding}, timeout=0.3)
    cluster.lease = None
    done, _ = await asyncio.wait({holding}, timeout=0.3)
    assert not done
    assert cluster.holder == "a"
    holding.cancel()


async def test_missing_rights_are_no_reason_to_wait() -> None:
    cluster = FakeCluster()
    cluster.down = ClusterError("leases is forbidden", status=403)
    with pytest.raises(ClusterError, match="forbidden"):
        await within(candidate(cluster, "a").acquire())
