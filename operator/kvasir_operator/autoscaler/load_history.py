"""The recommendations of the last minutes, and the number of engines that follows from them.

More engines come when all recommendations of `scaleUpAfter` ask for them, fewer when all of `scaleDownAfter` allow
it, as in the stabilization windows of a HorizontalPodAutoscaler. Without samples, the number stays.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvasir_contract.status_report import LOAD_WINDOW_SECONDS
from kvasir_operator.autoscaler.load_sample import LoadSample
from kvasir_operator.autoscaler.recommendation import recommend
from kvasir_operator.autoscaling_spec import AutoscalingSpec

STALE_SECONDS: Final = 30.0  # without a sample
MAX_REMEMBERED_SECONDS: Final = 6 * 3600.0  # since a target was missed: requests change


@dataclass(frozen=True)
class Entry:
    at: float  # monotonic
    engines: int  # that served
    ranks: int  # recommended
    missed: tuple[str, ...] = ()


# `why` and `limited` quote the targets that the last sample misses
@dataclass(frozen=True)
class ScalingDecision:
    ranks: int
    why: str = ""
    limited: str = ""  # by maxRanks


@dataclass(frozen=True)
class LoadHistory:
    entries: tuple[Entry, ...] = ()
    requests_per_rank: float | None = None  # with which a target was last missed
    missed_at: float = 0.0
    since: float = 0.0  # when this history began

    def with_sample(self, spec: AutoscalingSpec, sample: LoadSample, ranks: int, now: float) -> "LoadHistory":
        """Return the history with the recommendation for this sample. `ranks` is the present number."""
        assert spec.targets is not None
        entries = () if self.is_stale(now) else self.entries
        recent = [entry.engines for entry in entries if entry.at >= now - LOAD_WINDOW_SECONDS]
        is_known = bool(entries) and entries[0].at <= now - LOAD_WINDOW_SECONDS
        # a sample describes the window before it: with fewer engines, the load of each was higher
        grew = not is_known or min(recent, default=sample.engines) < sample.engines
        is_constant = is_known and {*recent} <= {sample.engines}
        learned = self._forgetting(now)
        found = recommend(spec.targets, sample, ranks, learned.requests_per_rank)
        if is_constant:
            learned = learned._learning(sample, now, is_slow=found.is_slow)
        unsure = grew if found.ranks > ranks else not is_constant
        entry = Entry(now, sample.engines, ranks if unsure else found.ranks, found.missed)
        kept = max(spec.scale_up_after, spec.scale_down_after, LOAD_WINDOW_SECONDS) + STALE_SECONDS
        return replace(learned, entries=(*(each for each in entries if each.at >= now - kept), entry))

    def decide(self, spec: AutoscalingSpec, ranks: int, now: float) -> ScalingDecision:
        """Return the number of engines. `ranks` is the present one."""
        if self.is_stale(now):
            return ScalingDecision(spec.limited(ranks))
        more = min(self._of_last(spec.scale_up_after, now))
        fewer = max(self._of_last(spec.scale_down_after, now))
        missed = "; ".join(self.entries[-1].missed)
        if more > ranks:
            return ScalingDecision(spec.limited(more), missed, missed if spec.limited(more) < more else "")
        if fewer < ranks:
            return ScalingDecision(spec.limited(fewer), f"no target was missed for {spec.scale_down_after:g} s")
        return ScalingDecision(spec.limited(ranks))

    def is_unknown(self, now: float) -> bool:
        """Return whether samples have been missing for too long."""
        return self.is_stale(now) and now - self.since > STALE_SECONDS

    def is_stale(self, now: float) -> bool:
        return not self.entries or now - self.entries[-1].at > STALE_SECONDS

    def _of_last(self, seconds: float, now: float) -> list[int]:
        # the last sample counts until the next one
        return [entry.ranks for entry in self.entries if entry.at >= now - seconds] or [self.entries[-1].ranks]

    def _forgetting(self, now: float) -> "LoadHistory":
        if self.requests_per_rank is not None and now - self.missed_at > MAX_REMEMBERED_SECONDS:
            return replace(self, requests_per_rank=None)
        return self

    def _learning(self, sample: LoadSample, now: float, *, is_slow: bool) -> "LoadHistory":
        known, load = self.requests_per_rank, sample.running / sample.engines if sample.engines else 0.0
        if is_slow and load:
            return replace(self, requests_per_rank=load if known is None else min(known, load), missed_at=now)
        if known is not None and load > known and not is_slow:
            return replace(self, requests_per_rank=load)
        return self
