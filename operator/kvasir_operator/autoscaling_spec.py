"""The field `autoscaling` of an InferenceService."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract.units import parse_duration
from kvasir_operator.spec_values import parsed

MAX_IDLE_SECONDS: Final = 60.0  # of the engines of a service scaled to 0


@dataclass(frozen=True)
class LoadTargets:
    queue_seconds: float | None = None
    kv_cache_utilization: float | None = None
    ttft: float | None = None  # seconds


@dataclass(frozen=True)
class AutoscalingSpec:
    min_ranks: int = 1
    max_ranks: int | None = None
    to_zero_after: float | None = None  # seconds without a request; None: never at zero
    targets: LoadTargets | None = None  # None: not scaled by load
    scale_up_after: float = 0.0  # seconds
    scale_down_after: float = 300.0

    def limited(self, ranks: int) -> int:
        """Return the number of engines for `ranks` in the spec, above zero."""
        return max(1, self.min_ranks, ranks if self.max_ranks is None else min(ranks, self.max_ranks))


def parse_autoscaling(fields: Mapping[str, Any] | None, ranks: int) -> AutoscalingSpec:
    """Parse the field. Raises InvalidSpec. With `ranks` 0, the engines are removed soon."""
    if fields is None:
        return AutoscalingSpec()
    after = parsed(parse_duration, fields, "toZeroAfter", "autoscaling") if "toZeroAfter" in fields else None
    if after is not None and ranks == 0:
        after = min(after, MAX_IDLE_SECONDS)
    return AutoscalingSpec(
        fields["minRanks"],
        fields.get("maxRanks"),
        after,
        _targets(fields["targets"]) if "targets" in fields else None,
        parsed(parse_duration, {"scaleUpAfter": "0s", **fields}, "scaleUpAfter", "autoscaling"),
        parsed(parse_duration, {"scaleDownAfter": "5m", **fields}, "scaleDownAfter", "autoscaling"),
    )


def _targets(fields: Mapping[str, Any]) -> LoadTargets:
    return LoadTargets(
        fields.get("queueSeconds"),
        fields.get("kvCacheUtilization"),
        parsed(parse_duration, fields, "ttft", "autoscaling.targets") if "ttft" in fields else None,
    )
