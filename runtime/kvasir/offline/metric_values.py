"""Values of metrics, in the classes of vLLM's reader."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from kvasir.offline.offline_engine import OfflineEngine

PREFIX = "vllm:"


@dataclass(frozen=True)
class Metric:
    name: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass(frozen=True)
class Gauge(Metric):
    """A number that may fall."""

    value: float


@dataclass(frozen=True)
class Vector(Metric):
    """Several counters: accepted drafts by place."""

    values: list[int]


@dataclass(frozen=True)
class Histogram(Metric):
    """Counts of values up to each bound."""

    count: int
    sum: float
    buckets: dict[str, int]


def metric_values(text: str, engine: OfflineEngine) -> list[Metric]:
    """Return the metrics in a text of Prometheus, and the load of the engine."""
    stats = engine.stats()
    load = {
        "num_requests_running": float(stats.running),
        "num_requests_waiting": float(stats.waiting),
        "kv_cache_usage_perc": engine.kv_usage,
    }
    metrics: list[Metric] = [Gauge(PREFIX + name, {}, value) for name, value in load.items()]
    if (drafts := stats.drafts) is not None:
        counts = {"drafts": drafts.drafts, "draft_tokens": drafts.tokens, "accepted_tokens": sum(drafts.accepted)}
        metrics += [Counter(f"{PREFIX}spec_decode_num_{name}", {}, value) for name, value in counts.items()]
        metrics.append(Vector(f"{PREFIX}spec_decode_num_accepted_tokens_per_pos", {}, list(drafts.accepted)))
    for family in text_string_to_metric_families(text):
        if family.name.startswith(PREFIX):
            metrics += _histograms(family) if family.type == "histogram" else _counters(family)
    return metrics


def _counters(family: Family) -> Iterator[Metric]:
    for sample in family.samples:
        if sample.name.endswith("_total"):
            yield Counter(family.name, dict(sample.labels), int(sample.value))


def _histograms(family: Family) -> Iterator[Metric]:
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        values = series.setdefault(tuple(labels.items()), {})
        kind = sample.name.removeprefix(family.name)
        values[sample.labels["le"] if kind == "_bucket" else kind] = sample.value
    for key, values in series.items():
        buckets = {bound: int(value) for bound, value in values.items() if not bound.startswith("_")}
        yield Histogram(family.name, dict(key), int(values["_count"]), values["_sum"], buckets)
