"""The status of an InferenceService, from the observed facts and the plan's decisions.

Equal facts give equal statuses, so only a change is written. A change that a controller has not processed yet
counts as under way.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kvasir_contract.reasons import Reason
from kvasir_operator.observe.engine_ranks import EngineRank
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.adapter_status import adapter_conditions, adapter_counts
from kvasir_operator.plan.conditions import (
    CONDITIONS,
    Condition,
    Decisions,
    condition,
    engine_group,
    gitops_conditions,
    is_reachable,
    service_conditions,
    serving,
    stamped,
)
from kvasir_operator.plan.exposure_status import exposure_conditions, urls
from kvasir_operator.plan.rank_status import rank_entries
from kvasir_operator.plan.scaling_status import scaling_conditions, scaling_memo
from kvasir_operator.resources.names import POD_INDEX_LABEL, selector_labels
from kvasir_operator.resources.network import url
from kvasir_operator.spec import InferenceService

Status = dict[str, Any]


def service_status(
    service: InferenceService,
    observed: Observed,
    ranks: Sequence[EngineRank],
    decisions: Decisions,
    previous: Mapping[str, Any],
    now: str,
) -> Status:
    """Return the status to write. `previous` is the current status or {}; `now` is in RFC 3339."""
    group = engine_group(service, ranks, decisions)
    conditions = service_conditions(service, observed, ranks, decisions, group)
    conditions += [*decisions.added, *adapter_conditions(service, observed)]
    conditions += exposure_conditions(service, observed)
    conditions += scaling_conditions(service, observed, decisions.scaling, previous)
    conditions += gitops_conditions(conditions, previous, datetime.fromisoformat(now))
    frontends = [member.state for member in observed.frontends]
    fields: Status = {
        "observedGeneration": observed.generation,
        "url": url(service) if is_reachable(service, observed) else None,
        "urls": urls(service, observed) if is_reachable(service, observed) else None,
        "model": service.model.served_names[0],
        "release": decisions.release or None,
        "profile": _profile(service),
        "replicas": sum(bool(rank.pods) and rank.number not in decisions.surge for rank in ranks),
        "selector": _scale_selector(service),
        "engines": {
            "desired": group.desired,
            "ready": group.ready,
            "summary": f"{group.ready}/{group.desired}",
            "restarts": sum(member.state.restarts for member in observed.engines),
            "ranks": rank_entries(ranks, previous.get("engines", {}).get("ranks", ()), now),
        },
        "frontends": {
            "desired": service.frontend.replicas,
            "ready": min(serving(frontends), service.frontend.replicas),
            "restarts": sum(state.restarts for state in frontends),
        },
        "adapters": adapter_counts(service, observed),
        "autoscaling": scaling_memo(observed, decisions.scaling, previous),
        "rollout": dict(decisions.rollout) or None,
        "conditions": stamped(conditions, previous.get("conditions", ()), observed.generation, now),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _profile(service: InferenceService) -> dict[str, Any] | None:
    profile = service.applied
    return None if profile is None else {"name": profile.name, "fields": profile.paths}


def _scale_selector(service: InferenceService) -> str:
    # one pod per rank, because an autoscaler takes pods for replicas
    labels = ",".join(f"{name}={value}" for name, value in selector_labels(service, "engine").items())
    if service.engine.nodes == 1:
        return labels
    leaders = ",".join(map(str, range(0, service.engine.pods, service.engine.nodes)))
    return f"{labels},{POD_INDEX_LABEL} in ({leaders})"


def invalid_status(error: str, generation: int, previous: Mapping[str, Any], now: str) -> Status:
    """Return the status for an unusable spec. The other fields keep their values."""
    message = f"{error}; the operator changes nothing until this is corrected"
    # the pods keep running, so other conditions keep their values
    conditions = [
        Condition(
            kind,
            kind == "Stalled"
            or (kind not in ("Progressing", "Reconciling") and condition(previous, kind).get("status") == "True"),
            Reason.INVALID_SPEC,
            message,
        )
        for kind in CONDITIONS
    ]
    before = previous.get("conditions", ())
    # those that only some services have, such as Exposed, describe objects that stay as they are
    others = [entry for entry in before if entry["type"] not in CONDITIONS]
    entries = [*stamped(conditions, before, generation, now), *others]
    return {**previous, "observedGeneration": generation, "conditions": entries}
