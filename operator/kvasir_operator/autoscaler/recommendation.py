"""The number of engines that one sample of the load recommends.

A wait for an engine shows too few engines, but not how many are too many: it is zero until the engines are full. So
engines are removed only if each of the others then gets less than HEADROOM of the requests with which a target was
last missed.
"""

import math
from dataclasses import dataclass
from typing import Final

from kvasir_operator.autoscaler.load_sample import LoadSample
from kvasir_operator.autoscaling_spec import LoadTargets

TOLERANCE: Final = 0.1  # around a target, in which nothing changes, as a HorizontalPodAutoscaler's
HEADROOM: Final = 0.8
MAX_ADDED: Final = 4  # at a time, or as many as there are


@dataclass(frozen=True)
class Recommendation:
    ranks: int
    missed: tuple[str, ...] = ()  # targets, with the values
    is_slow: bool = False  # one of them is a time


@dataclass(frozen=True)
class _Ratio:
    # of the value to its target
    value: float
    text: str
    is_time: bool

    @property
    def is_missed(self) -> bool:
        return self.value > 1 + TOLERANCE


def recommend(
    targets: LoadTargets, sample: LoadSample, ranks: int, requests_per_rank: float | None
) -> Recommendation:
    """Return the recommendation, without the limits of the spec.

    `ranks`: the present number, with those that start. `requests_per_rank`: with which a target was last missed.
    """
    if not sample.engines:
        return Recommendation(ranks)
    ratios = _ratios(targets, sample)
    # more engines than requests do not help
    useful = [ratio for ratio in ratios if not ratio.is_time or sample.waiting + sample.running > sample.engines]
    missed = [ratio for ratio in useful if ratio.is_missed]
    if missed:
        texts = tuple(ratio.text for ratio in missed)
        return Recommendation(_more(sample, ranks, missed), texts, any(ratio.is_time for ratio in missed))
    if any(ratio.value > 1 - TOLERANCE for ratio in ratios):
        return Recommendation(ranks)
    return Recommendation(_fewer(targets, sample, ranks, requests_per_rank))


def _ratios(targets: LoadTargets, sample: LoadSample) -> list[_Ratio]:
    ratios = []
    if (queue := targets.queue_seconds) is not None:
        text = f"requests wait {sample.queue_seconds:.1f} s for an engine (target {queue:g} s)"
        ratios.append(_Ratio(sample.queue_seconds / queue, text, is_time=True))
    if (ttft := targets.ttft) is not None:
        text = f"first tokens take {sample.ttft:.2f} s (target {ttft:g} s)"
        ratios.append(_Ratio(sample.ttft / ttft, text, is_time=True))
    if (kv_use := targets.kv_cache_utilization) is not None:
        text = f"{sample.kv_cache_utilization:.0%} of the KV cache are in use (target {kv_use:.0%})"
        ratios.append(_Ratio(sample.kv_cache_utilization / kv_use, text, is_time=False))
    return ratios


def _more(sample: LoadSample, ranks: int, missed: list[_Ratio]) -> int:
    serving = sample.engines
    factor = max(_overload(sample), *(0.0 if ratio.is_time else ratio.value for ratio in missed))
    needed = max(serving + 1, math.ceil(serving * factor))  # engines that start may be enough
    return max(ranks, min(needed, max(2 * serving, serving + MAX_ADDED)))


def _overload(sample: LoadSample) -> float:
    # The first grows with the backlog while engines start, the second is high before the first requests end.
    shares = [
        (sample.waiting + sample.running) / sample.running if sample.running else math.inf,
        sample.arrived / sample.finished if sample.finished else math.inf,
    ]
    least = min(shares)
    return least if math.isfinite(least) else 1.0


def _fewer(targets: LoadTargets, sample: LoadSample, ranks: int, requests_per_rank: float | None) -> int:
    serving = sample.engines
    if requests_per_rank is None:
        needed = serving - 1 if serving >= ranks else serving
    else:
        needed = math.ceil((sample.waiting + sample.running) / (HEADROOM * requests_per_rank))
    if targets.kv_cache_utilization is not None:
        needed = max(needed, math.ceil(serving * sample.kv_cache_utilization / targets.kv_cache_utilization))
    return min(ranks, max(1, needed, math.ceil(ranks / 2)))
