"""Kubernetes Events about an InferenceService. A failed write is only logged."""

import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kvasir_contract.api import MANAGER
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, Object
from kvasir_operator.cluster.kinds import EVENT, INFERENCE_SERVICE

log = logging.getLogger(__name__)

NORMAL: Final = "Normal"
WARNING: Final = "Warning"

QUIET: Final = 900.0  # for which the same Event is not repeated
REMEMBERED: Final = 4096


class Events:
    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._recorded: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def record(self, about: Object, reason: str, message: str, kind: str = NORMAL) -> None:
        if not self._is_new((about["metadata"]["uid"], reason, message)):
            return
        try:
            await self._cluster.create(EVENT, about["metadata"]["namespace"], _event(about, reason, message, kind))
        except ClusterError as error:
            log.warning("cannot write the Event %s about %s: %s", reason, about["metadata"]["name"], error)

    def _is_new(self, what: tuple[str, str, str]) -> bool:
        now = self._clock()
        if now - self._recorded.get(what, -QUIET) < QUIET:
            return False
        self._recorded[what] = now
        self._recorded.move_to_end(what)
        if len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)
        return True


def _event(about: Object, reason: str, message: str, kind: str) -> Object:
    metadata, now = about["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
