"""Families of Prometheus metrics that are made at a scrape."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DRAFTS_PREFIX = "vllm:spec_decode_num_"
Series = Iterable[tuple[Sequence[str], float]]  # labels and value


def gauge(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), series)


def counter(name: str, text: str, labels: Sequence[str], series: Series) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), series)


def draft_metrics(
    labels: Sequence[str], series: Sequence[tuple[Sequence[str], int, int, Sequence[int]]]
) -> Iterator[Metric]:
    """Yield the counters of speculative decoding, under vLLM's names.

    Each of the series has labels, drafts, tokens in them, and accepted tokens by place.
    """
    for name, text, values in (
        ("drafts", "How often tokens were guessed and verified in a step.", [each[1] for each in series]),
        ("draft_tokens", "Tokens that were guessed and verified.", [each[2] for each in series]),
        ("accepted_tokens", "Tokens of them that were right.", [sum(each[3]) for each in series]),
    ):
        yield counter(DRAFTS_PREFIX + name, text, labels, zip([each[0] for each in series], values, strict=True))
    yield counter(
        f"{DRAFTS_PREFIX}accepted_tokens_per_pos",
        "Tokens that were right, by their place among those guessed together.",
        [*labels, "position"],
        [([*own, str(place)], count) for own, _, _, places in series for place, count in enumerate(places)],
    )


def _filled(family: GaugeMetricFamily | CounterMetricFamily, series: Series) -> Metric:
    for labels, value in series:
        family.add_metric(labels, value)
    return family


class SecondName(Collector):
    """Shows a histogram under another name too."""

    def __init__(self, histogram: Histogram, name: str) -> None:
        self._histogram = histogram
        self._name = name

    def collect(self) -> Iterable[Metric]:
        for metric in self._histogram.collect():
            copy = Metric(self._name, metric.documentation, metric.type)
            copy.samples = [
                sample._replace(name=self._name + sample.name.removeprefix(metric.name))
                for sample in metric.samples
            ]
            yield copy
