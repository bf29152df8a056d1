"""Leadership by a Lease: of several operators one works, the others wait.

The library's own election is left alone: it ends with the process at the first broken connection, and does not give
the Lease back. As everywhere in Kubernetes, nobody compares clocks: a holder is gone when its record has not
changed for its duration, measured here.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Final

from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, ConflictError, NotFoundError, Object
from kvasir_operator.cluster.kinds import LEASE

log = logging.getLogger(__name__)

LEASE_NAME: Final = "kvasir-operator"


class LeaseLostError(Exception):
    """Somebody else may lead now: stop at once."""


class Lease:
    """One candidate. The three methods are called in this order, release() in any case."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        identity: str,
        name: str = LEASE_NAME,
        duration: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`duration`: seconds after which others take over from a holder that fell silent; at least 1."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._interval = duration / 7.5
        """Between attempts: 2 s of 15."""
        self._record: Object | None = None
        """As this candidate has last seen or written it."""
        self._seen_at = 0.0
        """When the record last changed."""

    async def acquire(self) -> None:
        """Returns when this candidate leads. Raises ClusterError where the API server refuses for good."""
        waiting_for = ""
        while True:
            try:
                holder = await self._try()
            except ClusterError as error:
                if error.status in (401, 403):
                    raise
                log.warning("the Lease %s/%s: %s", self._namespace, self._name, error)
            else:
                if holder == self._identity:
                    log.info("leading, by the Lease %s/%s", self._namespace, self._name)
                    return
                if holder != waiting_for:
                    log.info("standing by: %s leads", holder)
                    waiting_for = holder
            await asyncio.sleep(self._interval)

    async def hold(self) -> None:
        """Renews for as long as possible, then raises LeaseLostError."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                async with asyncio.timeout(max(self._remaining(), 0.0)):
                    holder = await self._try()
            except TimeoutError:
                holder = ""
            except ClusterError as error:
                log.warning("the Lease could not be renewed: %s", error)
                if self._remaining() > self._interval:
                    continue
                holder = ""
            if holder != self._identity:
                raise LeaseLostError(f"the Lease {self._namespace}/{self._name} was lost to {holder or 'silence'}")

    async def release(self) -> None:
        """Lets another candidate lead at once."""
        if self._record is None or _holder(self._record) != self._identity:
            return
        spec = {**self._record["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace(LEASE, {**self._record, "spec": spec})
            log.info("gave the Lease back")
        except ClusterError as error:
            log.warning("the Lease could not be given back: %s", error)
        self._record = None

    # ------------------------------------------------------------------------------------------------- one attempt

    def _remaining(self) -> float:
        """Seconds of leadership that are left after the last renewal, less a margin for clocks that drift."""
        return self._seen_at + self._duration * 0.8 - self._clock()

    async def _try(self) -> str:
        """Take it or renew it; returns who holds it now."""
        began = self._clock()
        if self._record is not None and _holder(self._record) == self._identity:
            with contextlib.suppress(
                ConflictError, NotFoundError
            ):  # somebody wrote or deleted it: look who and what
                return await self._write(self._cluster.replace(LEASE, self._renewed(self._record)), began)
        try:
            record = await self._read(began)
            if record is None:
                return await self._write(self._cluster.create(LEASE, self._namespace, self._fresh()), began)
            duration = record["spec"].get("leaseDurationSeconds") or self._duration
            if _holder(record) not in ("", self._identity) and self._clock() < self._seen_at + duration:
                return _holder(record)
            return await self._write(self._cluster.replace(LEASE, self._renewed(record)), began)
        except ConflictError:
            return "another candidate"

    async def _read(self, began: float) -> Object | None:
        try:
            record = await self._cluster.get(LEASE, self._namespace, self._name)
        except NotFoundError:
            return None
        version = record["metadata"]["resourceVersion"]
        if self._record is None or version != self._record["metadata"]["resourceVersion"]:
            self._record, self._seen_at = record, began
        return record

    async def _write(self, request: Coroutine[None, None, Object], began: float) -> str:
        self._record = await request
        self._seen_at = began
        return self._identity

    def _fresh(self) -> Object:
        metadata = {"name": self._name, "namespace": self._namespace}
        spec = self._spec() | {"acquireTime": _now(), "leaseTransitions": 0}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}

    def _renewed(self, record: Object) -> Object:
        spec = {**record["spec"], **self._spec()}
        if _holder(record) != self._identity:
            spec |= {"acquireTime": _now(), "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        return {**record, "spec": spec}

    def _spec(self) -> Object:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": _now(),
        }


def _holder(record: Object) -> str:
    """ "" for nobody."""
    return record["spec"].get("holderIdentity") or ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
