"""Leader election by a Lease: one replica of the operator works, the others stand by.

The library's election ends the process at the first broken connection and does not release the Lease. No clocks of
different machines are compared: a holder is gone when its record has not changed for its duration.
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
    """Another replica may lead now, so this one must stop at once."""


class Lease:
    """A candidate. Call `acquire`, then `hold`, and finally `release` in any case."""

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
        """`duration`: seconds without renewal until another candidate takes over; at least 1."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._clock = clock
        self._interval = duration / 7.5  # 2 s for a duration of 15 s
        self._record: Object | None = None
        self._seen_at = 0.0  # of its last change

    async def acquire(self) -> None:
        """Return when this candidate leads. Raises ClusterError without access."""
        waiting_for = ""
        while True:
            try:
                holder = await self._try()
            except ClusterError as error:
                if error.status in (401, 403):
                    raise
                log.warning("cannot acquire the Lease %s/%s: %s", self._namespace, self._name, error)
            else:
                if holder == self._identity:
                    log.info("leading with the Lease %s/%s", self._namespace, self._name)
                    return
                if holder != waiting_for:
                    log.info("standing by: %s leads", holder)
                    waiting_for = holder
            await asyncio.sleep(self._interval)

    async def hold(self) -> None:
        """Renew the Lease until this fails. Raises LeaseLostError."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                async with asyncio.timeout(max(self._remaining(), 0.0)):
                    holder = await self._try()
            except TimeoutError:
                holder = ""
            except ClusterError as error:
                log.warning("cannot renew the Lease: %s", error)
                if self._remaining() > self._interval:
                    continue
                holder = ""
            if holder != self._identity:
                cause = f"{holder} holds it now" if holder else "it was not renewed in time"
                raise LeaseLostError(f"lost the Lease {self._namespace}/{self._name}: {cause}")

    async def release(self) -> None:
        if self._record is None or _holder(self._record) != self._identity:
            return
        spec = {**self._record["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace(LEASE, {**self._record, "spec": spec})
            log.info("released the Lease")
        except ClusterError as error:
            log.warning("cannot release the Lease: %s", error)
        self._record = None

    # ------------------------------------------------------------------------------------------------- one attempt

    def _remaining(self) -> float:
        # with a margin for clock drift
        return self._seen_at + self._duration * 0.8 - self._clock()

    async def _try(self) -> str:
        """Try to acquire or renew the Lease. Return the holder."""
        began = self._clock()
        if self._record is not None and _holder(self._record) == self._identity:
            # another client wrote or deleted it, so read it again
            with contextlib.suppress(ConflictError, NotFoundError):
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
    return record["spec"].get("holderIdentity") or ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
