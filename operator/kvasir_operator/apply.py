"""Makes the children what they should be: applies, repairs and prunes them, and touches nobody else's objects.

Used by reconcile.py, with what observe.py has found. Server-side apply with our field manager owns every field that
we send; what others add stays.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvasir_operator.cluster import (
    FIELD_MANAGER,
    Cluster,
    ClusterError,
    ConflictError,
    InvalidError,
    NotFoundError,
    Object,
)
from kvasir_operator.events import Events
from kvasir_operator.kinds import Kind, kind_of
from kvasir_operator.observe import ChildKey
from kvasir_operator.pods import is_owned_by, is_terminating
from kvasir_operator.reasons import Reason
from kvasir_operator.status import Problem

_REFUSED: Final = (400, 422)
_UNCHANGED_LIMIT: Final = 16384
"""Children that are remembered as unchanged; more are applied again at each reconcile, which changes nothing."""


@dataclass(frozen=True)
class Applied:
    children: Mapping[ChildKey, Object]
    """Ours, as the API server has them now."""
    problems: Sequence[Problem]


class Applier:
    def __init__(self, cluster: Cluster, events: Events) -> None:
        self._cluster = cluster
        self._events = events
        self._unchanged: dict[str, str] = {}
        """By UID of the child, what was applied and which fields that made ours."""

    async def find(self, namespace: str, key: ChildKey, listed: Mapping[ChildKey, Object]) -> Object | None:
        """The object of this name, also where somebody took its labels away."""
        kind, name = key
        if key in listed:
            return listed[key]
        try:
            return await self._cluster.get(kind, namespace, name)
        except NotFoundError:
            return None

    async def apply(self, owner: Object, desired: Sequence[Object], listed: Mapping[ChildKey, Object]) -> Applied:
        """`owner`: the InferenceService. Raises ClusterError for what trying again may mend."""
        children: dict[ChildKey, Object] = {}
        problems: list[Problem] = []
        for resource in desired:
            key = kind_of(resource), resource["metadata"]["name"]
            existing = await self.find(resource["metadata"]["namespace"], key, listed)
            if existing is not None and not is_owned_by(existing, owner["metadata"]["uid"]):
                problems.append(name_taken(key))
                continue
            try:
                children[key] = await self._apply(owner, key[0], resource, existing)
            except ConflictError:
                if existing is not None:
                    raise
                problems.append(name_taken(key))  # somebody made one between our look and our creation
            except ClusterError as error:
                if error.status not in _REFUSED:
                    raise
                problems.append(_refusal(key, error))
                if existing is not None:
                    children[key] = existing
        return Applied(children, problems)

    async def prune(self, owner: Object, desired: Sequence[Object], listed: Mapping[ChildKey, Object]) -> None:
        """Delete children of ours that are no longer desired."""
        wanted = {(kind_of(resource), resource["metadata"]["name"]) for resource in desired}
        for key, child in listed.items():
            if key in wanted or is_terminating(child) or not is_owned_by(child, owner["metadata"]["uid"]):
                continue
            kind, name = key
            await self._cluster.delete(kind, child)
            await self._events.say(owner, "Deleted", f"{kind.kind} {name} is no longer needed")

    async def _apply(self, owner: Object, kind: Kind, resource: Object, existing: Object | None) -> Object:
        if existing is None:
            child = await self._cluster.apply(kind, resource, force=False)
            await self._events.say(owner, "Created", f"{kind.kind} {resource['metadata']['name']}")
        elif is_terminating(existing) or self._unchanged.get(existing["metadata"]["uid"]) == _digest(
            resource, existing
        ):
            return existing
        else:
            child = await self._repair(kind, resource, existing)
            if child["metadata"]["resourceVersion"] != existing["metadata"]["resourceVersion"]:
                await self._events.say(owner, "Updated", f"{kind.kind} {resource['metadata']['name']}")
        if len(self._unchanged) >= _UNCHANGED_LIMIT:
            self._unchanged.clear()
        self._unchanged[child["metadata"]["uid"]] = _digest(resource, child)
        return child

    async def _repair(self, kind: Kind, resource: Object, existing: Object) -> Object:
        # With its UID: should it be another one by now, this is a conflict and not a takeover.
        ours = {**resource, "metadata": {**resource["metadata"], "uid": existing["metadata"]["uid"]}}
        try:
            return await self._cluster.apply(kind, ours, force=True)
        except InvalidError:
            # Apply merges our list entries with those of others (the ports of a Service), and the mixture may be
            # what is refused: put whole fields in place of them. What is wrong by itself is refused here, too.
            await self._cluster.overwrite(kind, existing, {"spec": resource.get("spec", {})})
            return await self._cluster.apply(kind, ours, force=True)


def name_taken(key: ChildKey) -> Problem:
    kind, name = key
    return Problem(
        Reason.NAME_TAKEN,
        f"{kind.kind} {name} exists and is somebody else's: delete or rename it, or give the InferenceService "
        "another name",
    )


def _refusal(key: ChildKey, error: ClusterError) -> Problem:
    kind, name = key
    what = "the API server refuses" if isinstance(error, InvalidError) else "the API server cannot read"
    return Problem(
        Reason.INVALID_SPEC, f"{what} {kind.kind} {name}: {error}; correct the field of spec that it names"
    )


def _digest(resource: Object, child: Object) -> str:
    """The same as long as we want the same and nobody has changed a field of ours.

    Whoever changes a field takes it out of the set that the API server keeps of our fields, so a set that is still
    complete means values that are still ours. That saves the apply requests of an idle service.
    """
    ours = [
        entry.get("fieldsV1")
        for entry in child["metadata"].get("managedFields", ())
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (FIELD_MANAGER, "Apply", "")
    ]
    return hashlib.sha256(json.dumps([resource, ours], sort_keys=True).encode()).hexdigest()
