"""Prometheus counters of speculative decoding, under vLLM's names."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

PREFIX = "vllm:spec_decode_num_"


def draft_metrics(
    label_names: Sequence[str], series: Iterable[tuple[Sequence[str], int, int, Sequence[int]]]
) -> list[Metric]:
    """Return the counters. Each of the series has labels, drafts, tokens in them, and accepted tokens by place."""
    drafts = CounterMetricFamily(
        f"{PREFIX}drafts", "How often tokens were guessed and verified in a step.", labels=label_names
    )
    tokens = CounterMetricFamily(
        f"{PREFIX}draft_tokens", "Tokens that were guessed and verified.", labels=label_names
    )
    accepted = CounterMetricFamily(
        f"{PREFIX}accepted_tokens", "Tokens of them that were right.", labels=label_names
    )
    by_place = CounterMetricFamily(
        f"{PREFIX}accepted_tokens_per_pos",
        "Tokens that were right, by their place among those guessed together.",
        labels=[*label_names, "position"],
    )
    for labels, num_drafts, num_tokens, places in series:
        drafts.add_metric(labels, num_drafts)
        tokens.add_metric(labels, num_tokens)
        accepted.add_metric(labels, sum(places))
        for place, count in enumerate(places):
            by_place.add_metric([*labels, str(place)], count)
    return [drafts, tokens, accepted, by_place]
