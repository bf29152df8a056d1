"""An in-memory API server with Kubernetes' workload controllers, for tests of reads and writes.

It has the methods of `cluster_client.Cluster` and counts the calls. The clock moves only when a test sets it, and
the controllers act only in `run_controllers`.
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from kvasir_contract.api import MANAGER
from kvasir_operator.cluster.cluster_client import (
    PAGE,
    Cluster,
    ClusterError,
    ConflictError,
    InvalidError,
    NotFoundError,
    Object,
)
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION
from mock_controllers import run_controller
from operator_facts import NOON, SCHEMA

Name = tuple[Kind, str, str]
"""Kind, namespace ("" for none) and name."""
_UNOWNED: Final = ("apiVersion", "kind", "name", "namespace", "uid")
"""Fields that no manager owns."""


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 1000.0)


class MockCluster(Cluster):
    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[Name, Object] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls by verb (get, list, apply…, and create-dry) and kind."""
        self.refused: dict[tuple[str, Kind], ClusterError] = {}
        """The error of every such call, by verb and kind."""
        self.forbidden: set[str] = set()
        """Names of pods whose creation a quota forbids."""
        self.api_groups: set[str] = set()
        self.missing_kinds: set[Kind] = set()
        """Kinds without a CustomResourceDefinition."""
        self.statuses: list[tuple[float, Object]] = []
        """The written statuses of InferenceServices, with their times."""
        self.recorded_events: list[tuple[str, str]] = []
        """Reason and message of the operator's Events."""
        self.clock = clock or Clock()
        self._version = 0

    # --------------------------------------------------------------------------------------------- for tests

    def add_service(self, name: str = "demo", uid: str = "uid-1", **spec: Any) -> None:
        document = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"model": {"source": "demo://"}, **spec},
        }
        self.put(INFERENCE_SERVICE, _completed(document), uid=uid)

    def change_service(self, name: str = "demo", **spec: Any) -> None:
        resource = self.of(INFERENCE_SERVICE, name)
        changed = {"metadata": resource["metadata"], "spec": {**resource["spec"], **spec}}
        resource["spec"] = _completed(changed)["spec"]
        resource["metadata"]["generation"] += 1

    def put(self, kind: Kind, resource: Object, uid: str = "") -> Object:
        metadata = resource["metadata"]
        stored = {"apiVersion": kind.api_version, "kind": kind.kind, **copy.deepcopy(resource)}
        self._version += 1
        stored["metadata"] = {
            "generation": 1,
            "uid": uid or f"uid-{self._version}",
            "resourceVersion": str(self._version),
            **stored["metadata"],
        }
        self.objects[kind, metadata.get("namespace", ""), metadata["name"]] = stored
        return stored

    def of(self, kind: Kind, name: str, namespace: str = "default") -> Object:
        return self.objects[kind, namespace, name]

    def remove(self, kind: Kind, name: str, namespace: str = "default") -> None:
        del self.objects[kind, namespace, name]

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for found, _, name in self.objects if found is kind)

    def status(self, name: str = "demo") -> Object:
        status: Object = self.of(INFERENCE_SERVICE, name).get("status", {})
        return status

    def link_secret(self) -> str:
        return str(self.of(SERVICE_ACCOUNT, "demo")["metadata"]["annotations"][LINK_KEYS_ANNOTATION])

    def ready_message(self) -> str:
        return str(next(entry["message"] for entry in self.status()["conditions"] if entry["type"] == "Ready"))

    def condition(self, kind: str, name: str = "demo") -> tuple[str, str]:
        entry = next(entry for entry in self.status(name)["conditions"] if entry["type"] == kind)
        return entry["status"], entry["reason"]

    def run_controllers(self) -> None:
        """Let StatefulSets and Deployments observe their spec and create pods, which are ready at once."""
        for (kind, _, _), workload in list(self.objects.items()):
            if kind in (STATEFUL_SET, DEPLOYMENT):
                run_controller(self, kind, workload)

    # ------------------------------------------------------------------------------------------ methods of Cluster

    async def close(self) -> None:
        pass

    async def has_api_group(self, name: str) -> bool:
        return name in self.api_groups

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        self._count("get", kind)
        return copy.deepcopy(self._found(kind, namespace or "", name))

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "", page: int = PAGE
    ) -> list[Object]:
        self._count("list", kind)
        labels, paths = _pairs(selector), _pairs(fields)
        return [
            copy.deepcopy(resource)
            for (found, where, _), resource in self.objects.items()
            if found is kind
            and namespace in (None, where)
            and labels.items() <= resource["metadata"].get("labels", {}).items()
            and all(_at(resource, path) == value for path, value in paths.items())
        ]

    async def probe(self, kind: Kind, namespace: str | None) -> None:
        self._count("list", kind)

    async def apply(
        self,
        kind: Kind,
        resource: Object,
        *,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        self._count("apply-dry" if dry_run else "apply", kind)
        metadata = resource["metadata"]
        if subresource == "status":
            stored = self._found(kind, metadata["namespace"], metadata["name"])
            stored["status"] = copy.deepcopy(resource["status"])
            self.statuses.append((self.clock.seconds, stored["status"]))
            return copy.deepcopy(stored)
        body = _completed(resource) if kind is INFERENCE_SERVICE else copy.deepcopy(resource)
        existing = self.objects.get((kind, metadata["namespace"], metadata["name"]))
        if existing is not None and metadata.get("uid", existing["metadata"]["uid"]) != existing["metadata"]["uid"]:
            raise ConflictError("another object has taken its place", status=409)
        applied = self._applied(body, existing)
        if existing is not None and _content(applied) == _content(existing):
            return copy.deepcopy(existing)
        if dry_run:
            return {**applied, "metadata": {"uid": "uid-dry-run", "generation": 1, **applied["metadata"]}}
        if existing is None:
            return copy.deepcopy(self.put(kind, applied))
        generation = existing["metadata"]["generation"] + (applied.get("spec") != existing.get("spec"))
        self._version += 1
        applied["metadata"] |= {"generation": generation, "resourceVersion": str(self._version)}
        self.objects[kind, metadata["namespace"], metadata["name"]] = applied
        return copy.deepcopy(applied)

    async def merge(self, kind: Kind, existing: Object, fields: Object) -> Object:
        self._count("merge", kind)
        metadata = existing["metadata"]
        stored = self._found(kind, metadata["namespace"], metadata["name"])
        if stored["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise ConflictError("it has changed", status=409)
        self._version += 1
        stored["spec"] = {**stored.get("spec", {}), **fields.get("spec", {})}
        stored["metadata"] |= {**fields.get("metadata", {}), "resourceVersion": str(self._version)}
        return copy.deepcopy(stored)

    async def create(self, kind: Kind, namespace: str, resource: Object, *, dry_run: bool = False) -> Object:
        if kind is EVENT:
            self.recorded_events.append((resource["reason"], resource["message"]))
            return resource
        self._count("create-dry" if dry_run else "create", kind)
        name = resource["metadata"]["name"]
        if (kind, namespace, name) in self.objects:
            raise ConflictError(f"{kind.kind} {name} already exists", status=409)
        body = _completed(resource) if kind is INFERENCE_SERVICE else resource
        if dry_run:
            return {**body, "metadata": {"uid": "uid-dry-run", "generation": 1, **body["metadata"]}}
        return copy.deepcopy(self.put(kind, body))

    async def replace(self, kind: Kind, resource: Object, *, dry_run: bool = False) -> Object:
        assert dry_run, "the operator's reconcile replaces nothing"
        self._count("replace-dry", kind)
        found = self._found(kind, resource["metadata"]["namespace"], resource["metadata"]["name"])
        body = _completed(resource) if kind is INFERENCE_SERVICE else resource
        return copy.deepcopy({**found, "metadata": resource["metadata"], "spec": body["spec"]})

    async def delete(self, kind: Kind, resource: Object, *, grace: int | None = None) -> None:
        self._count("delete", kind)
        metadata = resource["metadata"]
        found = self.objects.get((kind, metadata["namespace"], metadata["name"]))
        if found is not None and found["metadata"]["uid"] == metadata["uid"]:
            del self.objects[kind, metadata["namespace"], metadata["name"]]

    # ------------------------------------------------------------------------------------------------------ details

    def _count(self, verb: str, kind: Kind) -> None:
        self.calls[verb, kind.kind] += 1
        if kind in self.missing_kinds:
            raise NotFoundError("the server could not find the requested resource", status=404)
        error = self.refused.get((verb, kind))
        if error is not None:
            raise error

    def _found(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFoundError(f"{kind.kind} {name} not found", status=404) from None

    def _applied(self, body: Object, existing: Object | None) -> Object:
        """Server-side apply, as far as the operator's own fields go: lists are replaced."""
        entry = {"manager": MANAGER, "operation": "Apply", "fieldsV1": _fields(body)}
        if body["kind"] == DEPLOYMENT.kind:
            body = {**body, "spec": {"replicas": 1, **body["spec"]}}
        if existing is None:
            return {**body, "metadata": {**body["metadata"], "managedFields": [entry]}}
        others = [found for found in existing["metadata"].get("managedFields", ()) if found["manager"] != MANAGER]
        merged = {**existing, **body}
        merged["metadata"] = {**existing["metadata"], **body["metadata"], "managedFields": [*others, entry]}
        return merged


def refusal(status: int, message: str = "no", cause: str = "") -> ClusterError:
    """Return the ClusterError that `Cluster` raises for this HTTP status; 0 for no response."""
    kinds: Mapping[int, Callable[..., ClusterError]] = {404: NotFoundError, 409: ConflictError, 422: InvalidError}
    causes = frozenset({cause} if cause else ())
    return kinds.get(status, ClusterError)(message, status=status, causes=causes)


def _completed(document: Object) -> Object:
    completed, problems = SCHEMA.complete(copy.deepcopy(document))
    if problems:
        raise InvalidError("; ".join(map(str, problems)), status=422)
    return completed


def _content(resource: Object) -> Object:
    """Return the fields that decide whether two versions of an object differ."""
    counted = ("resourceVersion", "generation", "uid")
    metadata = {name: value for name, value in resource["metadata"].items() if name not in counted}
    return {**resource, "metadata": metadata, "status": None}


def _fields(body: object) -> object:
    """Return the paths that are set, nested as in fieldsV1."""
    if not isinstance(body, dict):
        return {}
    return {f"f:{name}": _fields(value) for name, value in body.items() if name not in _UNOWNED}


def _pairs(selector: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in selector.split(",") if part)


def _at(resource: Any, path: str) -> Any:
    for name in path.split("."):
        resource = resource.get(name, {})
    return resource
