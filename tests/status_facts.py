"""Statuses of a service with two ranks and one frontend, for tests of the operator's plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Member, Observed
from kvasir_operator.plan.conditions import Decisions
from kvasir_operator.plan.plan import TIME_FORMAT
from kvasir_operator.plan.service_status import Status, service_status
from kvasir_operator.profiles import Profile
from operator_facts import NOON, frontends, member, observed, service

AT_NOON = NOON.strftime(TIME_FORMAT)
READY = frontends("ready")
SURGE = Decisions(under_way=("1 engine pod still runs the old revision",), surge=frozenset({2}))


def status_of(
    ranks: Sequence[Member] = (),
    front: Sequence[Member] = READY,
    decisions: Decisions = Decisions(),  # noqa: B008 (frozen)
    previous: Mapping[str, Any] | None = None,
    now: str = AT_NOON,
    adapters: Sequence[Mapping[str, str]] | None = None,
    expose: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    **facts: Any,
) -> Status:
    model = {"source": "demo://"} if adapters is None else {"source": "demo://", "loraAdapters": [*adapters]}
    spec: dict[str, Any] = {"model": model} | ({} if expose is None else {"expose": expose})
    of = replace(service(**spec), applied=profile)
    found: Observed = observed(of, ranks, front, **facts)
    return service_status(of, found, engine_ranks(of, found), decisions, previous or {}, now)


def conditions(status: Status) -> dict[str, str]:
    return {entry["type"]: f"{entry['status']} {entry['reason']}" for entry in status["conditions"]}


def message(status: Status, kind: str = "Ready") -> str:
    return str(next(entry["message"] for entry in status["conditions"] if entry["type"] == kind))


def restarted(name: str, restarts: int, component: str = "engine") -> Member:
    found = member(name, "ready", component)
    return replace(found, state=replace(found.state, restarts=restarts))
