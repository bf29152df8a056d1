"""The frontend's counters and histograms look like those of prometheus_client."""

import re

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from kvasir.frontend.telemetry.series import CounterFamily, HistogramFamily

LABELS = ("model", "engine")
BOUNDS = (0.001, 0.5, 1.0, 2.5, 10.0)
VALUES = (0.0, 0.001, 0.0011, 0.5, 1.0, 1.5, 10.0, 10.5, 1e6)


def exposition(registry: CollectorRegistry) -> str:
    """The text, without the times at which the series were made."""
    return re.sub(r"(_created\{[^}]*\}) \S+", r"\1", generate_latest(registry).decode())


def test_a_counter_looks_like_that_of_prometheus_client() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = CounterFamily("tokens", "How many.", LABELS, ours)
    reference = Counter("tokens", "How many.", LABELS, registry=theirs)
    assert exposition(ours) == exposition(theirs)
    for engine, amount in (("0", 3), ("1", 1), ("0", 4)):
        counter.labels("m", engine).inc(amount)
        reference.labels("m", engine).inc(amount)
    assert exposition(ours) == exposition(theirs)
    assert counter.total() == 8


def test_a_histogram_looks_like_that_of_prometheus_client() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = HistogramFamily("seconds", "How long.", LABELS, BOUNDS, ours)
    reference = Histogram("seconds", "How long.", LABELS, buckets=BOUNDS, registry=theirs)
    assert exposition(ours) == exposition(theirs)
    for engine, values in (("0", VALUES), ("1", VALUES[3:5])):
        for value in values:
            histogram.labels("m", engine).observe(value)
            reference.labels("m", engine).observe(value)
    assert exposition(ours) == exposition(theirs)
