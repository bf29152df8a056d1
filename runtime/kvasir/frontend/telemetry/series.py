"""Counters and histograms that are written by the event loop only, several times for each token.

Those of prometheus_client take a lock for each change, because any thread may write. Here one thread writes and the
others read, so that a change is an addition. The metrics look the same in an exposition.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString


class CounterSeries:
    """One series of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.created = time.time()
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount


class CounterFamily(Collector):
    """A counter with labels."""

    def __init__(self, name: str, help: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._series: dict[tuple[str, ...], CounterSeries] = {}
        registry.register(self)

    def labels(self, *values: str) -> CounterSeries:
        """Return the series with these values of the labels, in order."""
        return self._series.setdefault(values, CounterSeries())

    def total(self) -> int:
        """Return the sum of all series."""
        return sum(series.value for series in self._series.values())

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in list(self._series.items()):
            family.add_metric(values, series.value, created=series.created)
        return [family]


class HistogramSeries:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "created", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.created = time.time()
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values up to each bound and above the one before; the last count is of those above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class HistogramFamily(Collector):
    """A histogram with labels. `bounds`: the upper bounds of its buckets but the last, which has none."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._bounds = bounds
        self._names: list[str] = [floatToGoString(bound) for bound in (*bounds, inf)]  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], HistogramSeries] = {}
        registry.register(self)

    def labels(self, *values: str) -> HistogramSeries:
        """Return the series with these values of the labels, in order."""
        return self._series.setdefault(values, HistogramSeries(self._bounds))

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in list(self._series.items()):
            family.add_metric(values, self._buckets(series.counts), series.sum)
            labels = dict(zip(self._labels, values, strict=True))
            family.samples.append(Sample(f"{self._name}_created", labels, series.created))
        return [family]

    def _buckets(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        """Return name and value of each bucket, which counts the values in all buckets before it too."""
        buckets: list[tuple[str, float]] = []
        sum = 0
        for name, count in zip(self._names, counts, strict=True):
            sum += count
            buckets.append((name, sum))
        return buckets
