"""Figures of speculative decoding, from a server's metrics before and after a load. Names are vLLM's."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

_SAMPLE: Final = re.compile(r"vllm:spec_decode_num_(\w+?)_total\{(.*)\} (\S+)")
_PLACE: Final = re.compile(r'position="(\d+)"')

# Of drafts, draft_tokens and accepted_tokens; "0", "1", … for the accepted tokens at each place.
DraftCounts = Mapping[str, float]


def draft_counts(text: str) -> DraftCounts:
    counts: dict[str, float] = defaultdict(float)
    for name, labels, value in _SAMPLE.findall(text):
        place = _PLACE.search(labels)
        counts[place[1] if place else name] += float(value)
    return counts


def draft_figures(before: DraftCounts, after: DraftCounts) -> dict[str, Any] | None:
    """Return the figures of the drafts in between, None without any."""
    counts = {name: value - before.get(name, 0) for name, value in after.items()}
    drafts, tokens = counts.get("drafts", 0), counts.get("draft_tokens", 0)
    if drafts <= 0 or tokens <= 0:
        return None
    accepted = counts.get("accepted_tokens", 0)
    places = sorted((int(name), value) for name, value in counts.items() if name.isdecimal())
    return {
        "drafts": int(drafts),
        "draft_tokens": int(tokens),
        "accepted_tokens": int(accepted),
        "acceptance_rate": accepted / tokens,
        "acceptance_length": 1 + accepted / drafts,
        "per_position_acceptance_rates": [value / drafts for _, value in places],
    }


def draft_lines(figures: Mapping[str, Any]) -> list[str]:
    by_place = " ".join(f"{rate:.0%}" for rate in figures["per_position_acceptance_rates"])
    return [
        f"drafts     {figures['drafts']} with {figures['draft_tokens']} tokens, "
        f"{figures['accepted_tokens']} accepted = {figures['acceptance_rate']:.1%}",
        f"           mean acceptance length {figures['acceptance_length']:.2f}, by position {by_place}",
    ]
