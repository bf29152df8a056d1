"""Whether the load decides on the number of engines, as a condition and in the status."""

from collections.abc import Mapping
from typing import Any, Final

from kvasir_contract.endpoints import OPS_PORT
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.conditions import Condition
from kvasir_operator.plan.load_scaling import LoadScaling, first_ranks
from kvasir_operator.plan.problem import MAX_NAMED
from kvasir_operator.spec import InferenceService

SCALING_ACTIVE: Final = "ScalingActive"  # as a HorizontalPodAutoscaler's


def scaling_conditions(
    service: InferenceService, observed: Observed, scaling: LoadScaling, previous: Mapping[str, Any]
) -> list[Condition]:
    """Return the condition of a service with targets, else none. `previous` is the current status or {}."""
    if scaling.ranks is None:
        return []
    return [Condition(SCALING_ACTIVE, *_state(service, observed, scaling, first_ranks(observed, previous)))]


def _state(
    service: InferenceService, observed: Observed, scaling: LoadScaling, first: int | None
) -> tuple[bool, Reason, str]:
    spec, size = service.autoscaling, observed.stateful_set
    if size is None or size.replicas == 0:
        return False, Reason.SCALED_TO_ZERO if size else Reason.LOADING, "there are no engines yet"
    if observed.load.is_unknown(observed.now):
        return False, Reason.LOAD_UNKNOWN, _unknown(observed)
    if (ignored := _ignored_scale(observed, first)) is not None:
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


def _ignored_scale(observed: Observed, first: int | None) -> str | None:
    requested = observed.requested
    # 0 has an effect: the service goes to zero sooner
    if requested is None or not requested.manager or requested.number in (first, 0):
        return None
    who = f"{requested.manager} (a HorizontalPodAutoscaler)" if requested.is_autoscaler else requested.manager
    remedy = "delete that HorizontalPodAutoscaler" if requested.is_autoscaler else "change minRanks and maxRanks"
    return (
        f"{who} has set engine.dataParallelSize to {requested.number}, without effect, because autoscaling.targets "
        f"decides: {remedy}, or remove autoscaling.targets"
    )


def scaling_memo(
    observed: Observed, scaling: LoadScaling, previous: Mapping[str, Any]
) -> dict[str, float | int] | None:
    """Return what the next operator should know. `previous` is the current status or {}."""
    if scaling.ranks is None:
        return None
    load, first = observed.load.requests_per_rank, first_ranks(observed, previous)
    found = {"requestsPerRank": None if load is None else round(load, 1), "firstRanks": first}
    return {name: value for name, value in found.items() if value is not None}
