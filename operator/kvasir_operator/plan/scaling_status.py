"""Whether the load decides on the number of engines, as a condition and in the status."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kvasir_contract.endpoints import OPS_PORT
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.conditions import Condition, condition
from kvasir_operator.plan.load_scaling import LoadScaling
from kvasir_operator.plan.problem import MAX_NAMED
from kvasir_operator.spec import InferenceService

SCALING_ACTIVE: Final = "ScalingActive"  # as a HorizontalPodAutoscaler's
IGNORED_SECONDS: Final = 3600.0  # for which it names an ignored write


def scaling_conditions(
    service: InferenceService, observed: Observed, scaling: LoadScaling, previous: Mapping[str, Any], now: datetime
) -> list[Condition]:
    """Return the condition of a service with targets, else none. `previous` is the current status or {}."""
    if scaling.ranks is None:
        return []
    before = condition(previous, SCALING_ACTIVE)
    return [Condition(SCALING_ACTIVE, *_state(service, observed, scaling, before, now))]


def _state(
    service: InferenceService, observed: Observed, scaling: LoadScaling, before: Mapping[str, Any], now: datetime
) -> tuple[bool, Reason, str]:
    spec, size = service.autoscaling, observed.stateful_set
    if size is None or size.replicas == 0:
        return False, Reason.SCALED_TO_ZERO if size else Reason.LOADING, "there are no engines yet"
    if observed.load.is_unknown(observed.now):
        return False, Reason.LOAD_UNKNOWN, _unknown(observed)
    if (ignored := _ignored_scale(service, observed, before, now)) is not None:
        return True, Reason.SCALE_IGNORED, ignored
    if scaling.limited:
        message = f"the load asks for more engines than autoscaling.maxRanks ({spec.max_ranks}): raise it"
        return True, Reason.AT_MAX_RANKS, message
    least, most = max(1, spec.min_ranks), spec.max_ranks
    return True, Reason.AS_DESIRED, f"the load decides on the number of engines, from {least} to {most}"


def _unknown(observed: Observed) -> str:
    serving = [member for member in observed.frontends if member.serves]
    late = [member.pod.name for member in serving if member.report is None or member.report.load is None]
    who = ", ".join(late[:MAX_NAMED]) or "the frontends"
    return (
        f"the number of engines stays, because the operator gets no load from {who}: check that it can reach port "
        f"{OPS_PORT} of their pods, and that they run the operator's release"
    )


def _ignored_scale(
    service: InferenceService, observed: Observed, before: Mapping[str, Any], now: datetime
) -> str | None:
    scaled = observed.scaled
    # a write from before the targets were set was not ignored
    if scaled is None or before.get("status") != "True" or scaled.at <= before["lastTransitionTime"]:
        return None
    if (now - datetime.fromisoformat(scaled.at)).total_seconds() > IGNORED_SECONDS:
        return None
    who = f"{scaled.manager} (a HorizontalPodAutoscaler)" if scaled.is_autoscaler else scaled.manager
    remedy = "delete that HorizontalPodAutoscaler" if scaled.is_autoscaler else "change minRanks and maxRanks"
    return (
        f"{who} set engine.dataParallelSize to {scaled.ranks} at {scaled.at}, without effect, because "
        f"autoscaling.targets decides: {remedy}, or remove autoscaling.targets"
    )


def scaling_memo(observed: Observed, scaling: LoadScaling) -> dict[str, float] | None:
    """Return what the next operator should know."""
    load = observed.load.requests_per_rank
    return None if scaling.ranks is None or load is None else {"requestsPerRank": round(load, 1)}
