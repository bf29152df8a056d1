"""The operator's Prometheus metrics: its own, and the states of the services that it handles."""

import time
from collections import Counter as Amounts
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.plan.conditions import condition

KeyT = TypeVar("KeyT", bound=Hashable)

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAKE_SECONDS: Final = (2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
_VALUES: Final = {"True": 1.0, "False": 0.0}
_LABELS: Final = ("namespace", "service")


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
        self.of_services = ServiceMetrics(registry)

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


class ServiceMetrics(Collector):
    """Shows the last status of each service. A service that is forgotten has no series any more."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._statuses: dict[Key, Mapping[str, Any]] = {}
        self._woken: dict[Key, float] = {}  # when a request woke the service
        self._clock = clock
        self._wakes = Histogram(
            "kvasir_service_wake_seconds",
            "Time from a request at zero to the first ready engine.",
            _LABELS,
            buckets=_WAKE_SECONDS,
            registry=registry,
        )
        registry.register(self)

    def record(self, key: Key, status: Mapping[str, Any]) -> None:
        self._statuses[key] = status
        reason = condition(status, "Ready").get("reason")
        if reason == Reason.WAKING_UP:
            self._woken.setdefault(key, self._clock())
        elif reason == Reason.SCALED_TO_ZERO:
            self._woken.pop(key, None)
        elif key in self._woken and status.get("engines", {}).get("ready"):
            self._wakes.labels(*key).observe(self._clock() - self._woken.pop(key))

    def forget(self, key: Key) -> None:
        self._woken.pop(key, None)
        if self._statuses.pop(key, None) is not None:
            self._wakes.remove(*key)

    def collect(self) -> Iterator[Metric]:
        conditions = _gauge("condition", "A condition: 1 true, 0 false, -1 unknown.", "condition")
        reasons = _gauge("reason", "Always 1; the label is the reason of the condition Ready.", "reason")
        ranks = _gauge("ranks", "Engines in a phase.", "phase")
        pods = [
            (component, field, _gauge(f"{component}_{field}", text.format(component)))
            for component in ("engines", "frontends")
            for field, text in _COUNTS.items()
        ]
        for key, status in list(self._statuses.items()):
            for entry in status.get("conditions", ()):
                conditions.add_metric([*key, entry["type"]], _VALUES.get(entry["status"], -1.0))
            reasons.add_metric([*key, condition(status, "Ready").get("reason", "")], 1.0)
            phases = Amounts(rank["phase"] for rank in status.get("engines", {}).get("ranks", ()))
            for phase in Phase:
                ranks.add_metric([*key, phase], phases[phase])
            for component, field, gauge in pods:
                gauge.add_metric([*key], status.get(component, {}).get(field, 0))
        yield from (conditions, reasons, ranks, *(gauge for _, _, gauge in pods))


_COUNTS: Final = {
    "desired": "Desired {}.",
    "ready": "Ready {}.",
    "restarts": "Restarts of the containers of all current {}.",
}


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kvasir_service_{name}", text, labels=[*_LABELS, *labels])
