"""Selects the children to write: those that differ from the desired ones, but no foreign objects."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir_contract.api import MANAGER
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import kind_of
from kvasir_operator.observe.observed import ChildKey, ChildObject, Object, Observed, Ownership
from kvasir_operator.plan.problem import Problem


@dataclass(frozen=True)
class Apply:
    key: ChildKey
    body: Object
    existing: ChildObject | None  # None if a conflict shows that another client created it


@dataclass(frozen=True)
class Applies:
    applies: tuple[Apply, ...]
    taken: tuple[Problem, ...]  # names of foreign objects
    held_back: frozenset[ChildKey]  # refused recently
    awaited: tuple[str, ...] = ()  # foreign objects that are being deleted


def plan_applies(desired: Sequence[Object], observed: Observed, retry_seconds: float) -> Applies:
    """Return the applies in the order of `desired`. A refused body is retried after `retry_seconds`."""
    applies, taken, held_back, awaited = [], [], set(), []
    for body in desired:
        key = kind_of(body), body["metadata"]["name"]
        existing, refusal = observed.children.get(key), observed.refusals.get(key)
        if existing is not None and existing.ownership is Ownership.FOREIGN:
            if existing.terminating:
                awaited.append(f"{key[0].kind} {key[1]}")
            else:
                taken.append(name_taken(key))
        elif refusal is not None and refusal.body == digest_of(body) and observed.now < refusal.at + retry_seconds:
            held_back.add(key)
        elif existing is None:
            applies.append(Apply(key, body, None))
        elif not existing.terminating and observed.unchanged.get(existing.uid) != digest(body, existing.object):
            applies.append(Apply(key, body, existing))
    return Applies(tuple(applies), tuple(taken), frozenset(held_back), tuple(awaited))


def plan_prunes(wanted: Sequence[ChildKey], observed: Observed) -> tuple[tuple[ChildKey, ChildObject], ...]:
    return tuple(
        (key, child)
        for key, child in observed.children.items()
        if key not in wanted and child.ownership is Ownership.OURS and not child.terminating
    )


def name_taken(key: ChildKey) -> Problem:
    kind, name = key
    return Problem(
        Reason.NAME_TAKEN,
        f"{kind.kind} {name} already exists and is not owned by this InferenceService: delete or rename it, or "
        "give the InferenceService another name",
    )


def digest_of(body: Object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def digest(body: Object, child: Object) -> str:
    """Return a digest that changes only with the desired body or with one of our fields.

    A field that another client changes leaves our managed fields, so a complete set is ours.
    """
    ours = [
        entry.get("fieldsV1")
        for entry in child["metadata"].get("managedFields", ())
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (MANAGER, "Apply", "")
    ]
    return hashlib.sha256(json.dumps([body, ours], sort_keys=True).encode()).hexdigest()
