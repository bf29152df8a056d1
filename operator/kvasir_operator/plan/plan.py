"""The plan of a reconcile: everything it writes and deletes, and the status.

After the actor has executed a plan, a second plan from the facts with the API server's answers gives the status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    SECRET,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
    kind_of,
)
from kvasir_operator.observe.engine_ranks import engine_ranks, not_created_ranks
from kvasir_operator.observe.observed import ChildKey, ChildObject, Object, Observed, Ownership, Pod
from kvasir_operator.plan.applies import Applies, Apply, plan_applies, plan_prunes
from kvasir_operator.plan.cache_fill import CacheFill, cache_fill
from kvasir_operator.plan.conditions import Decisions
from kvasir_operator.plan.engine_rollout import EngineRollout, PodDeletion, roll_engines
from kvasir_operator.plan.exposure_status import seconds_until_accepted
from kvasir_operator.plan.frontend_rollout import FrontendRollout, roll_frontends, with_scaled_frontends
from kvasir_operator.plan.load_scaling import LoadScaling, scale_by_load, with_ranks
from kvasir_operator.plan.lost_pods import regroup, release_lost
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS, is_moving, seconds_until_next
from kvasir_operator.plan.problem import MAX_NAMED, Problem
from kvasir_operator.plan.service_status import Status, service_status
from kvasir_operator.plan.waiting_ranks import give_room_back
from kvasir_operator.plan.zero import GateOrder, decide_zero
from kvasir_operator.resources.adapter_list import adapters_name
from kvasir_operator.resources.children import child_keys, children
from kvasir_operator.resources.names import RANKS_ANNOTATION, RELEASE_ANNOTATION, TEMPLATE_ANNOTATION
from kvasir_operator.resources.pinning import keep_template, pin
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"

WORKLOADS: Final = (DEPLOYMENT, STATEFUL_SET)


@dataclass(frozen=True)
class Plan:
    """The actions, in the order of the fields below `status`."""

    status: Status
    new_link_keys: bool = False  # create their Secret, then make a new plan
    gates: tuple[GateOrder, ...] = ()
    applies: tuple[Apply, ...] = ()
    prunes: tuple[tuple[ChildKey, ChildObject], ...] = ()
    deletions: tuple[PodDeletion, ...] = ()
    again: float | None = None  # seconds until a change without a watch event
    held_back: frozenset[ChildKey] = frozenset()  # refused recently
    polled: tuple[Pod, ...] = ()  # frontends to wait for demand at
    upgrade_available: bool = False  # but not requested
    scaling: LoadScaling = field(default_factory=LoadScaling)


def make_plan(
    service: InferenceService, observed: Observed, previous: Mapping[str, Any], release: Release, now: datetime
) -> Plan:
    """Return the plan. `previous` is the current status or {}."""
    memo, release = previous.get("rollout", {}), release.of(service)
    service = with_scaled_frontends(service, observed.deployment)
    scaling = scale_by_load(service, observed, previous)
    service = with_ranks(service, scaling)
    zero = decide_zero(service, observed, memo)
    full, service = service, _at_zero(service) if zero.at_zero else service
    ranks = engine_ranks(service, observed)
    engines = roll_engines(service, observed, ranks, memo)
    frontends = roll_frontends(service, observed)
    cache = cache_fill(service, observed, release)
    desired = _desired(full, observed, release, engines, frontends, scaling, cache)
    found = plan_applies(desired.bodies, observed, BLOCKED_INTERVAL_SECONDS)
    problems = [*found.taken, *_problems(service, observed), *([cache.problem] if cache.problem else ())]
    decisions = Decisions(
        problems=tuple(problems),
        under_way=_under_way(service, observed, found, engines, frontends),
        surge=engines.surge,
        rollout={**engines.memo, **zero.memo},
        zero=zero,
        release=desired.release,
        upgrade=desired.upgrade,
        unpinned=desired.unpinned,
        scaling=scaling,
        added=cache.conditions,
    )
    status = service_status(service, observed, ranks, decisions, previous, now.strftime(TIME_FORMAT))
    incomplete = (
        *regroup(service, observed, ranks),
        *give_room_back(service, observed, ranks, previous, now),
    )
    if service.paused or observed.namespace_terminating:
        again = BLOCKED_INTERVAL_SECONDS if service.paused and is_moving(observed) else None
        return Plan(status, again=again, held_back=frozenset(observed.refusals))
    return Plan(
        status=status,
        new_link_keys=_needs_link_keys(observed) and not _has_foreign_account(service, observed),
        gates=zero.gates,
        polled=zero.polled,
        applies=found.applies,
        held_back=found.held_back,
        prunes=plan_prunes(
            [*child_keys(service), *_still_mounted(service, found, frontends), *cache.job_keys], observed
        ),
        deletions=_deletions(observed, found.applies, engines, frontends, incomplete),
        again=seconds_until_next(
            observed,
            status,
            [*problems, *found.awaited],
            now,
            (zero.again, seconds_until_accepted(service, status)),
            engines.under_way != "",
        ),
        upgrade_available=desired.upgrade != "",
        scaling=scaling,
    )


def _at_zero(service: InferenceService) -> InferenceService:
    # for decisions that are not about children
    return replace(service, engine=replace(service.engine, data_parallel_size=0))


def _still_mounted(service: InferenceService, found: Applies, frontends: FrontendRollout) -> list[ChildKey]:
    # a pod of the old revision cannot start again without it
    is_rolling = frontends.under_way != "" or _changes_template(DEPLOYMENT, found.applies)
    return [(CONFIG_MAP, adapters_name(service))] if is_rolling else []


def _deletions(
    observed: Observed,
    applies: Sequence[Apply],
    engines: EngineRollout,
    frontends: FrontendRollout,
    incomplete: Sequence[PodDeletion],
) -> tuple[PodDeletion, ...]:
    """Return each pod to delete once. `incomplete`: deletions of ranks that lack a pod."""
    found = (
        *release_lost(observed),
        # a pod deleted before the new template is applied could get the old template again
        *(() if _changes_template(STATEFUL_SET, applies) else engines.deletions),
        *(() if _changes_template(STATEFUL_SET, applies) else incomplete),
        *(() if _changes_template(DEPLOYMENT, applies) else frontends.deletions),
    )
    return tuple({deletion.pod.uid: deletion for deletion in reversed(found)}.values())[::-1]


def _under_way(
    service: InferenceService,
    observed: Observed,
    found: Applies,
    engines: EngineRollout,
    frontends: FrontendRollout,
) -> tuple[str, ...]:
    awaited = f"the deletion of {', '.join(found.awaited[:MAX_NAMED])} is awaited" if found.awaited else ""
    blocked = (
        f"the pod of surge rank {rank} cannot be created ({why})"
        for rank, why in not_created_ranks(service, observed).items()
        if rank in engines.surge
    )
    parts = [awaited, _writes(observed, found.applies), engines.under_way, *blocked, frontends.under_way]
    return tuple(filter(None, parts))


@dataclass(frozen=True)
class _Desired:
    bodies: tuple[Object, ...]
    release: str
    upgrade: str
    unpinned: tuple[str, ...]  # workloads with templates too long to keep


def _desired(
    service: InferenceService,
    observed: Observed,
    release: Release,
    engines: EngineRollout,
    frontends: FrontendRollout,
    scaling: LoadScaling,
    cache: CacheFill,
) -> _Desired:
    # without workloads that cannot run yet
    may_upgrade = observed.asked_release == release.id or observed.may_upgrade
    replicas = {STATEFUL_SET: engines.ranks * service.engine.nodes, DEPLOYMENT: frontends.replicas}
    # pods must not use a foreign ServiceAccount, and need the link's keys
    foreign = _has_foreign_account(service, observed)
    held = foreign or not observed.link_secret
    bodies, pinned, unpinned = [], [], []
    jobs = [cache.job] if cache.job and not foreign else []
    for body in [*children(service, release, observed.link_secret, cache.filled), *jobs]:
        kind = _WORKLOAD_KINDS.get(body["kind"])
        if kind is None:
            bodies += [body] if kind_of(body) not in observed.missing_kinds else []
            continue
        if held:
            continue
        if replicas[kind] is None:
            del body["spec"]["replicas"]
        else:
            body["spec"]["replicas"] = replicas[kind]
        existing = observed.children.get((kind, body["metadata"]["name"]))
        earlier = None if existing is None or existing.ownership is Ownership.FOREIGN else existing.object
        kept: Object | None = body
        if cache.problem is not None:
            # pods of the new template could not start; those of the present one go on
            kept = keep_template(body, earlier) if earlier is not None else None
        elif earlier is not None and not may_upgrade:
            kept = pin(body, earlier)
        if kept is None:
            continue
        if (made_by := kept["metadata"]["annotations"][RELEASE_ANNOTATION]) != release.id:
            pinned.append(made_by)
        if TEMPLATE_ANNOTATION not in kept["metadata"]["annotations"]:
            unpinned.append(f"{kind.kind} {kept['metadata']['name']}")
        if kind is STATEFUL_SET and scaling.ranks is not None:
            kept["metadata"]["annotations"][RANKS_ANNOTATION] = str(scaling.ranks)
        bodies.append(kept)
    return _Desired(
        bodies=tuple(bodies),
        release=pinned[0] if pinned else release.id,
        upgrade=release.id if pinned else "",
        unpinned=tuple(unpinned),
    )


def _writes(observed: Observed, applies: Sequence[Apply]) -> str:
    # under way until the next plan sees them
    names = [f"{kind.kind} {name}" for kind, name in (apply.key for apply in applies)]
    if _needs_link_keys(observed):
        names.insert(0, "the link's keys")
    if len(names) > MAX_NAMED:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"]
    return f"writing {', '.join(names)}" if names else ""


def _changes_template(kind: Kind, applies: Sequence[Apply]) -> bool:
    for apply in applies:
        if apply.key[0] is kind and apply.existing is not None:
            old = apply.existing.object["metadata"].get("annotations", {})
            return bool(
                old.get(TEMPLATE_ANNOTATION) != apply.body["metadata"]["annotations"].get(TEMPLATE_ANNOTATION)
            )
    return False


_WORKLOAD_KINDS: Final = {kind.kind: kind for kind in WORKLOADS}


def _has_foreign_account(service: InferenceService, observed: Observed) -> bool:
    account = observed.children.get((SERVICE_ACCOUNT, service.name))
    return account is not None and account.ownership is Ownership.FOREIGN


def _needs_link_keys(observed: Observed) -> bool:
    return not observed.link_secret or observed.link_secret_exists is False


def _problems(service: InferenceService, observed: Observed) -> list[Problem]:
    problems = [
        Problem(refusal.reason, refusal.message)
        for key, refusal in observed.refusals.items()
        if key[0] is not SECRET or _needs_link_keys(observed)
    ]
    for key_field, name in service.frontend.key_secrets.items():
        if key_field in observed.missing_key_secrets:
            message = f"frontend.{key_field} names the Secret {name}, which does not exist: create it"
            problems.append(Problem(Reason.INVALID_SPEC, message))
    if observed.deployment is not None and observed.deployment.failure:
        message = f"frontend pods cannot be created: {observed.deployment.failure}"
        problems.append(Problem(Reason.UNSCHEDULABLE, message))
    if service.paused:
        problems.append(Problem(Reason.PAUSED, "spec.paused is true, so the operator makes no changes"))
    return problems
