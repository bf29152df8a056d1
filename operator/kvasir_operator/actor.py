"""Executes a plan: applies, prunes and deletes objects, and writes the status.

The API server's error about one object becomes a refusal, and the plan continues.
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
# in the HTTP 500 with which server-side apply rejects an unknown field
_BAD_FIELD: Final = ("typed patch object", "merged object", "field not declared in schema")


@dataclass(frozen=True)
class PlanOutcome:
    children: Mapping[ChildKey, ChildObject]  # as the API server returned them
    refusals: Mapping[ChildKey, Refusal]
    unchanged: Mapping[str, str]  # digest of each applied child, by UID

    def onto(self, observed: Observed) -> Observed:
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
        """Create a Secret with link keys and return its name. Raises ClusterError without a response."""
        name = new_link_secret_name(service)
        try:
            await self._cluster.create(SECRET, service.namespace, link_secret(service, name, new_link_keys()))
        except ClusterError as error:
            return _refusal((SECRET, name), error)
        await self._events.record(owner, "Created", f"Created Secret {name}")
        return name

    async def execute(self, owner: Object, service: InferenceService, plan: Plan) -> PlanOutcome:
        """Execute all but the status. Raises ClusterError if the API server does not respond."""
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
                await self._events.record(
                    owner, "Deleted", f"Deleted {kind.kind} {name}, which is no longer needed"
                )
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
            # A CustomResourceDefinition older than the operator lacks fields, so write the others.
            log.warning(
                "the status of %s lacks fields, because the CustomResourceDefinition is outdated (apply crds/): %s",
                metadata["name"],
                error,
            )
            body["status"] = {name: status[name] for name in ("observedGeneration", "conditions") if name in status}
            await self._cluster.apply(INFERENCE_SERVICE, body, force=True, subresource="status")

    # -------------------------------------------------------------------------------------------------- details

    async def _apply(self, owner: Object, apply: Apply) -> Object:
        kind, name = apply.key
        if apply.existing is None:
            child = await self._cluster.apply(kind, apply.body, force=False)
            await self._events.record(owner, "Created", f"Created {kind.kind} {name}")
            return child
        existing = apply.existing.object
        child = await self._repair(kind, apply.body, existing)
        if child["metadata"]["resourceVersion"] != existing["metadata"]["resourceVersion"]:
            await self._events.record(owner, "Updated", f"Updated {kind.kind} {name}")
        return child

    async def _repair(self, kind: Kind, body: Object, existing: Object) -> Object:
        if any(map(_is_update, existing["metadata"].get("managedFields", ()))):
            existing = await self._own_by_apply(kind, existing)
        # The UID makes this a conflict, not a takeover, if another object has the name by now.
        ours = {**body, "metadata": {**body["metadata"], "uid": existing["metadata"]["uid"]}}
        try:
            return await self._cluster.apply(kind, ours, force=True)
        except InvalidError:
            # Apply merges our list entries with those of others (as the ports of a Service). The result may be
            # invalid, so replace whole fields.
            replaced = await self._cluster.merge(kind, existing, {"spec": body.get("spec", {})})
            await self._own_by_apply(kind, replaced)
            return await self._cluster.apply(kind, ours, force=True)

    async def _own_by_apply(self, kind: Kind, resource: Object) -> Object:
        # Otherwise our merge patch would own its fields forever, even after they leave the desired object.
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
            await self._events.record(owner, deletion.event, deletion.why, kind)

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
    # raises the error if the API server did not respond
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
            f"the API server rejects {kind.kind} {name}: {error}; correct this field of spec",
        )
    if error.status in _OVERLOADED:
        return Refusal(Reason.REFUSED, f"the API server cannot store {kind.kind} {name} at the moment: {error}")
    return Refusal(
        Reason.REFUSED,
        f"the API server refuses {kind.kind} {name}: {error}; check quotas, admission policies and the "
        "operator's permissions",
    )


def _is_apply(entry: Object) -> bool:
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (MANAGER, "Apply", "")


def _is_update(entry: Object) -> bool:
    # the fields of our merge patch
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (MANAGER, "Update", "")


def _union(one: Object, other: Object) -> Object:
    # two field sets as trees of dictionaries
    return {
        name: _union(one[name], other[name]) if name in one and name in other else (one | other)[name]
        for name in one | other
    }
