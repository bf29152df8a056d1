"""The number of engines of a service that is scaled by its load.

An annotation of the StatefulSet keeps it, because the size counts surge ranks too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvasir_operator.observe.observed import Observed, Pod
from kvasir_operator.plan.problem import count
from kvasir_operator.spec import InferenceService


@dataclass(frozen=True)
class LoadScaling:
    ranks: int | None = None  # None: not by load
    change: str = ""  # for an Event
    limited: bool = False  # by maxRanks
    frontends: tuple[Pod, ...] = ()  # whose load decides


def scale_by_load(service: InferenceService, observed: Observed, previous: Mapping[str, Any]) -> LoadScaling:
    """Return the decision. `previous` is the current status or {}."""
    spec, stateful_set = service.autoscaling, observed.stateful_set
    if spec.targets is None:
        return LoadScaling()
    requested = first_ranks(observed, previous)
    first = service.engine.data_parallel_size if requested is None else spec.limited(requested)
    if stateful_set is None or stateful_set.replicas == 0:
        return LoadScaling(first)
    ranks = stateful_set.ranks or first
    if service.paused:
        return LoadScaling(ranks)
    found = observed.load.decide(spec, ranks, observed.now)
    change = f"{count(found.ranks, 'engine')} instead of {ranks}"
    return LoadScaling(
        ranks=found.ranks,
        change="" if found.ranks == ranks else f"{change}: {found.why}" if found.why else change,
        limited=found.limited != "",
        frontends=tuple(member.pod for member in observed.frontends if member.serves),
    )


def first_ranks(observed: Observed, previous: Mapping[str, Any]) -> int | None:
    """Return the last number that was not set through the scale subresource while the load decided."""
    requested = observed.requested
    if requested is None:
        return None
    before: int | None = previous.get("autoscaling", {}).get("firstRanks")
    return requested.number if before is None or not requested.manager else before


def with_ranks(service: InferenceService, scaling: LoadScaling) -> InferenceService:
    if scaling.ranks is None:
        return service
    return replace(service, engine=replace(service.engine, data_parallel_size=scaling.ranks))
