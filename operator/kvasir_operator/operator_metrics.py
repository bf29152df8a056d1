"""The operator's own Prometheus metrics."""

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

KeyT = TypeVar("KeyT", bound=Hashable)

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class OperatorMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.leading = Gauge("kvasir_operator_leading", "1 while this replica leads.", registry=registry)
        self.services = Gauge(
            "kvasir_operator_services", "InferenceServices found by the last resync.", registry=registry
        )
        self._depth = Gauge("kvasir_operator_queue_depth", "Services waiting to be reconciled.", registry=registry)
        self._failing = Gauge(
            "kvasir_operator_failing_services", "Services whose last reconcile failed.", registry=registry
        )
        self._reconciles = Counter(
            "kvasir_operator_reconciles", "Reconciles, by result.", ["result"], registry=registry
        )
        self._seconds = Histogram(
            "kvasir_operator_reconcile_seconds", "Duration of a reconcile.", buckets=_SECONDS, registry=registry
        )

    def watch_queue(self, depth: Callable[[], int], failing: Callable[[], int]) -> None:
        self._depth.set_function(depth)
        self._failing.set_function(failing)

    def measured(
        self, reconcile: Callable[[KeyT], Awaitable[float | None]]
    ) -> Callable[[KeyT], Awaitable[float | None]]:
        """Return a wrapper of `reconcile` that counts and times each call."""

        async def handle(key: KeyT) -> float | None:
            began = time.monotonic()
            result = "error"
            try:
                delay = await reconcile(key)
                result = "ok"
                return delay
            finally:
                self._seconds.observe(time.monotonic() - began)
                self._reconciles.labels(result).inc()

        return handle
