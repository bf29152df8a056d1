"""Reads the keys of experts that architectures share."""

from typing import NamedTuple

from kvasir.layers.activation import sigmoid
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.models.config_reader import ConfigReader
from kvasir.models.model_load_error import ModelLoadError


class ExpertCounts(NamedTuple):
    experts: int
    top_k: int


def read_counts(
    reader: ConfigReader, *names: str, top_k: str = "num_experts_per_tok", defaults: ExpertCounts
) -> ExpertCounts:
    """Return the numbers of experts. The first of `names` that is set has their count."""
    count = defaults.experts
    for name in reversed(names):
        count = reader.integer(name, count)
    chosen = reader.integer(top_k, defaults.top_k)
    if chosen > count:
        raise ModelLoadError(f"config.json sets {top_k} to {chosen} and has {count} experts only")
    return ExpertCounts(count, chosen)


def read_grouped(reader: ConfigReader, counts: ExpertCounts, *, renormalise: bool) -> TopScores:
    """Return the routing of DeepSeek V3: sigmoids, corrected by a bias, in groups.

    `renormalise` is a default.
    """
    groups = reader.integer("n_group", 1)
    top_groups = reader.integer("topk_group", 1)
    if counts.experts % groups or top_groups > groups:
        raise ModelLoadError(
            f"config.json sets n_group to {groups} and topk_group to {top_groups}: the first must divide the "
            f"{counts.experts} experts, and the second be at most the first"
        )
    most = counts.experts // groups * top_groups
    if counts.top_k > most:
        raise ModelLoadError(
            f"config.json sets num_experts_per_tok to {counts.top_k} and has only {most} experts in {top_groups} "
            "groups (topk_group)"
        )
    return TopScores(
        *counts,
        renormalise=reader.flag("norm_topk_prob", renormalise),
        score=sigmoid,
        scale=reader.number("routed_scaling_factor", 1.0),
        corrected=True,
        groups=groups,
        top_groups=top_groups,
    )
