"""Carries a plan out: applies, prunes, deletes, and writes the status. A refusal is an answer, not an end.

Server-side apply with our field manager owns every field that is sent; what others add stays.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvasir_contract.api import MANAGER
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.cluster_client import Cluster, ClusterError, ConflictError, InvalidError
from kvasir_operator.cluster.events import NORMAL, WARNING, Events
from kvasir_operator.cluster.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, SECRET, STATEFUL_SET, Kind
from kvasir_operator.link_keys import new_link_keys, new_link_secret_name
from kvasir_operator.observe.objects import child_of, workload_of
from kvasir_operator.observe.observed import ChildKey, ChildObject, Object, Observed, Refusal
from kvasir_operator.plan.applies import Apply, digest, digest_of, name_taken
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.plan.plan import Plan
from kvasir_operator.plan.service_status import Status
from kvasir_operator.resources.security import link_secret
from kvasir_operator.spec import InferenceService

log = logging.getLogger(__name__)

_NAMESPACE_TERMINATING: Final = "NamespaceTerminating"
_BAD_BODY: Final = (400, 422)
_OVERLOADED: Final = (429, 503, 504)
_BAD_FIELD: Final = ("typed patch object", "merged object", "field not declared in schema")
"""Server-side apply answers 500 for a field that the object's schema does not have; other errors are 500 too."""


@dataclass(frozen=True)
class PlanOutcome:
    """The result of a plan."""

    children: Mapping[ChildKey, ChildObject]
    """Those that were applied, as the API server has them now."""
    refusals: Mapping[ChildKey, Refusal]
    unchanged: Mapping[str, str]
    """By UID of an applied child, its digest."""

    def onto(self, observed: Observed) -> Observed:
        """Return the facts after the plan, as far as the status needs them."""
        workloads = {
            kind: workload_of(child.object)
            for (kind, _), child in self.children.items()
            if kind in (STATEFUL_SET, DEPLOYMENT)
        }
        return observed.with_changes(
            stateful_set=workloads.get(STATEFUL_SET, observed.stateful_set),
            deployment=workloads.get(DEPLOYMENT, observed.deployment),
            children={**observed.children, **self.children},
            refusals=self.refusals,
            unchanged={**observed.unchanged, **self.unchanged},
        )


class Actor:
    def __init__(self, cluster: Cluster, events: Events) -> None:
        self._cluster = cluster
        self._events = events

    async def create_link_secret(self, owner: Object, service: InferenceService) -> str | Refusal:
        """Return the name of a new Secret with new keys. Raises ClusterError if the API server does not answer."""
        name = new_link_secret_name(service)
        try:
            await self._cluster.create(SECRET, service.namespace, link_secret(service, name, new_link_keys()))
        except ClusterError as error:
            return _refusal((SECRET, name), error)
        await self._events.say(owner, "Created", f"Secret {name}")
        return name

    async def execute(self, owner: Object, service: InferenceService, plan: Plan) -> PlanOutcome:
        """Raises ClusterError if the API server does not answer at all."""
        children: dict[ChildKey, ChildObject] = {}
        refusals: dict[ChildKey, Refusal] = {}
        unchanged: dict[str, str] = {}
        for apply in plan.applies:
            try:
                applied = await self._apply(owner, apply)
            except ClusterError as error:
                refusal = _refusal(apply.key, error, existing=apply.existing is not None)
                refusals[apply.key] = replace(refusal, body=digest_of(apply.body))
                if refusals[apply.key].namespace_terminating:
                    return PlanOutcome(children, refusals, unchanged)
                continue
            child = children[apply.key] = child_of(applied, service)
            unchanged[child.uid] = digest(apply.body, applied)
        for (kind, name), child in plan.prunes:
            if await self._delete(refusals, kind, child.object, None):
                await self._events.say(owner, "Deleted", f"{kind.kind} {name} is no longer needed")
        for deletion in plan.deletions:
            await self._delete_pod(owner, deletion, refusals)
        return PlanOutcome(children, refusals, unchanged)

    async def write_status(self, resource: Object, status: Status) -> None:
        metadata = resource["metadata"]
        body = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
            "status": status,
        }
        try:
            await self._cluster.apply(INFERENCE_SERVICE, body, force=True, subresource="status")
        except ClusterError as error:
            if error.status not in (*_BAD_BODY, 500):
                raise
            # A CustomResourceDefinition older than the operator lacks fields of the status: the rest must be heard.
            log.warning("the status of %s is cut to what its definition has: %s", metadata["name"], error)
            body["status"] = {name: status[name] for name in ("observedGeneration", "conditions") if name in status}
            await self._cluster.apply(INFERENCE_SERVICE, body, force=True, subresource="status")

    # -------------------------------------------------------------------------------------------------- details

    async def _apply(self, owner: Object, apply: Apply) -> Object:
        kind, name = apply.key
        if apply.existing is None:
            child = await self._cluster.apply(kind, apply.body, force=False)
            await self._events.say(owner, "Created", f"{kind.kind} {name}")
            return child
        existing = apply.existing.object
        child = await self._repair(kind, apply.body, existing)
        if child["metadata"]["resourceVersion"] != existing["metadata"]["resourceVersion"]:
            await self._events.say(owner, "Updated", f"{kind.kind} {name}")
        return child

    async def _repair(self, kind: Kind, body: Object, existing: Object) -> Object:
        if any(map(_is_update, existing["metadata"].get("managedFields", ()))):
            existing = await self._own_by_apply(kind, existing)
        # With its UID: should another object have its name by now, this is a conflict and not a takeover.
        ours = {**body, "metadata": {**body["metadata"], "uid": existing["metadata"]["uid"]}}
        try:
            return await self._cluster.apply(kind, ours, force=True)
        except InvalidError:
            # Apply merges our list entries with those of others (the ports of a Service), and the mixture may be
            # invalid: replace whole fields instead. A body that is invalid by itself is refused here, too.
            replaced = await self._cluster.merge(kind, existing, {"spec": body.get("spec", {})})
            await self._own_by_apply(kind, replaced)
            return await self._cluster.apply(kind, ours, force=True)

    async def _own_by_apply(self, kind: Kind, resource: Object) -> Object:
        """Make the fields that a merge patch of ours wrote part of what we applied.

        Else the patch would own them for ever, and a field would outlive its removal from the desired object.
        """
        entries = resource["metadata"]["managedFields"]
        patched = [entry for entry in entries if _is_update(entry)]
        fields: Object = {}
        for entry in [*patched, *filter(_is_apply, entries)]:
            fields = _union(fields, entry.get("fieldsV1", {}))
        applied = {**patched[0], "operation": "Apply", "fieldsV1": fields}
        others = [entry for entry in entries if not _is_update(entry) and not _is_apply(entry)]
        return await self._cluster.merge(kind, resource, {"metadata": {"managedFields": [*others, applied]}})

    async def _delete_pod(self, owner: Object, deletion: PodDeletion, refusals: dict[ChildKey, Refusal]) -> None:
        if await self._delete(refusals, POD, deletion.pod.reference, deletion.grace):
            kind = NORMAL if deletion.grace is None else WARNING
            await self._events.say(owner, deletion.event, deletion.why, kind)

    async def _delete(
        self, refusals: dict[ChildKey, Refusal], kind: Kind, resource: Object, grace: int | None
    ) -> bool:
        try:
            await self._cluster.delete(kind, resource, grace=grace)
        except ClusterError as error:
            key = kind, resource["metadata"]["name"]
            refusals[key] = _refusal(key, error)
            return False
        return True


def _refusal(key: ChildKey, error: ClusterError, *, existing: bool = True) -> Refusal:
    """Raises the error if the API server did not answer at all: then nothing can be written about it either."""
    if error.status == 0:
        raise error
    kind, name = key
    if _NAMESPACE_TERMINATING in error.causes:
        return Refusal(Reason.REFUSED, f"the namespace is being deleted: {error}", namespace_terminating=True)
    if isinstance(error, ConflictError):
        if not existing:
            return Refusal(Reason.NAME_TAKEN, name_taken(key).message)
        return Refusal(Reason.ROLLING_OUT, f"{kind.kind} {name} changed while it was being updated")
    if error.status in _BAD_BODY or (error.status == 500 and any(words in str(error) for words in _BAD_FIELD)):
        return Refusal(
            Reason.INVALID_SPEC,
            f"the API server rejects {kind.kind} {name}: {error}; correct the field of spec that it names",
        )
    if error.status in _OVERLOADED:
        return Refusal(Reason.REFUSED, f"the API server could not store {kind.kind} {name} for the moment: {error}")
    return Refusal(
        Reason.REFUSED,
        f"the API server refuses {kind.kind} {name}: {error}; change what forbids it (a quota, a policy, the "
        "operator's rights)",
    )


def _is_apply(entry: Object) -> bool:
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (MANAGER, "Apply", "")


def _is_update(entry: Object) -> bool:
    """Whether it is about fields that a merge patch of ours wrote."""
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (MANAGER, "Update", "")


def _union(one: Object, other: Object) -> Object:
    """Return the fields of both sets; a set is a tree of dictionaries."""
    return {
        name: _union(one[name], other[name]) if name in one and name in other else (one | other)[name]
        for name in one | other
    }
