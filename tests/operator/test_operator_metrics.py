"""The metrics of services, as they follow reconciles."""

from prometheus_client import CollectorRegistry

from kvasir_operator.cluster.kinds import INFERENCE_SERVICE
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.operator_metrics import ServiceMetrics
from mock_operator import Operator
from operator_facts import engines
from status_facts import status_of

DEMO = Key("default", "demo")
OF_DEMO = {"namespace": "default", "service": "demo"}


class Watched:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = 0.0
        self.metrics = ServiceMetrics(self.registry, clock=lambda: self.seconds)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"kvasir_service_{name}", {**OF_DEMO, **labels})

    def series(self) -> list[str]:
        return [sample.name for family in self.registry.collect() for sample in family.samples]


def with_reason(reason: str, ready: int) -> dict[str, object]:
    ready_condition = {"type": "Ready", "status": "True", "reason": reason, "message": ""}
    return {"conditions": [ready_condition], "engines": {"ready": ready}}


def test_metrics_show_the_status_of_a_service() -> None:
    watched = Watched()
    watched.metrics.record(DEMO, status_of(engines("ready", "crashing")))
    assert watched.value("condition", condition="Ready") == 1
    assert watched.value("condition", condition="EnginesReady") == 0
    assert watched.value("condition", condition="Stalled") == -1  # unknown until it lasts
    assert watched.value("reason", reason="CrashLooping") == 1
    assert (watched.value("engines_desired"), watched.value("engines_ready")) == (2, 1)
    assert (watched.value("frontends_desired"), watched.value("frontends_ready")) == (1, 1)
    assert [watched.value("ranks", phase=phase) for phase in ("Ready", "Failed", "Loading")] == [1, 1, 0]


def test_metrics_of_a_forgotten_service_end() -> None:
    watched = Watched()
    watched.metrics.record(DEMO, with_reason("WakingUp", 0))
    watched.metrics.record(DEMO, with_reason("AsDesired", 1))
    watched.metrics.forget(DEMO)
    watched.metrics.forget(DEMO)
    assert watched.series() == []


def test_a_wake_is_timed_to_the_first_engine() -> None:
    watched = Watched()
    for at, reason, ready in (
        (0.0, "ScaledToZero", 0),
        (5.0, "WakingUp", 0),
        (9.0, "WakingUp", 0),
        (10.0, "ImagePullFailed", 0),
        (17.0, "AsDesired", 1),
        (99.0, "AsDesired", 1),
    ):
        watched.seconds = at
        watched.metrics.record(DEMO, with_reason(reason, ready))
    assert watched.value("wake_seconds_sum") == 12
    assert watched.value("wake_seconds_count") == 1


def test_a_wake_that_is_given_up_is_not_timed() -> None:
    watched = Watched()
    for reason, ready in (("WakingUp", 0), ("ScaledToZero", 0), ("AsDesired", 1)):
        watched.metrics.record(DEMO, with_reason(reason, ready))
    assert watched.value("wake_seconds_count") is None


async def test_metrics_follow_reconciles_to_the_deletion(operator: Operator) -> None:
    watched = Watched()
    operator.restart(metrics=watched.metrics)
    operator.cluster.add_service()
    await operator.settle()
    assert watched.value("condition", condition="Ready") == 1
    operator.cluster.remove(INFERENCE_SERVICE, "demo")
    await operator.once()
    assert watched.series() == []
