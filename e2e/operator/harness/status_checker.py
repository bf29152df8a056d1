"""Compares every status of an InferenceService with the state of the cluster when it was written.

A status may report that nothing is under way (Progressing=False with reason AsDesired, for the newest generation)
only under three conditions: the workloads had the template and replicas of that generation, their controllers had
observed it, and every pod had this template and was ready. `kubectl wait`, Argo CD and Flux rely on it.

The checker has its own watches and compares afterwards. Resource versions order the changes of all kinds. The facts
of a status were read after the last change of the spec and after the previous status was written. The status is
correct if it was true at one moment at least between then and its own writing.
"""

import asyncio
import contextlib
import json
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from e2e.operator.harness.world import RELEASE, World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, STATEFUL_SET, Kind

_KINDS: Final = (INFERENCE_SERVICE, STATEFUL_SET, DEPLOYMENT, POD)
_LINE: Final = 4 * 1024 * 1024
"""Limit of the bytes of one change in a watch."""


@dataclass(frozen=True)
class Change:
    version: int
    kind: Kind
    object: Object
    gone: bool


class StatusChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._changes: list[Change] = []
        self._grown = asyncio.Condition()

    async def violations(self, name: str = "demo") -> list[str]:
        """Return descriptions of statuses that reported the end of a change too early."""
        await self._catch_up(name)
        changes = sorted(self._changes, key=lambda change: change.version)
        services = [each for each in changes if each.kind == INFERENCE_SERVICE and _name(each.object) == name]
        found = []
        start = 0
        """Facts count from here on: the newest change of the spec, or the previous status."""
        before: Object = {}
        for service in services:
            spec_changed = service.object["metadata"]["generation"] != before.get("metadata", {}).get("generation")
            if spec_changed:
                start = service.version
            elif service.object.get("status") != before.get("status"):
                if _says_done(service.object):
                    wrong = self._wrong(changes, service, start, name)
                    if wrong:
                        what = "; ".join(sorted(wrong))
                        found.append(f"at {service.version} the status was AsDesired, although {what}")
                start = service.version
            before = service.object
        return found

    def done_reports(self, name: str = "demo") -> int:
        """Return how many statuses reported that nothing is under way."""
        services = [each for each in self._changes if each.kind == INFERENCE_SERVICE]
        return sum(_name(each.object) == name and _says_done(each.object) for each in services)

    def _wrong(self, changes: list[Change], service: Change, start: int, name: str) -> set[str]:
        """Return the problems at the moment with the fewest; none if there was a moment without problems."""
        best: set[str] | None = None
        for moment in _moments(changes, start, service.version):
            wrong = set(_problems(moment, service.object, name))
            if best is None or len(wrong) < len(best):
                best = wrong
        return best or set()

    async def _catch_up(self, name: str) -> None:
        """Wait until the watches have delivered the current state."""
        objects = [await self._world.service(name)]
        for kind in _KINDS[1:]:
            objects += await self._world.cluster.list(kind, self._world.namespace)
        newest = {(each["metadata"]["uid"], int(each["metadata"]["resourceVersion"])) for each in objects}

        def seen() -> bool:
            last: dict[str, int] = {}
            for change in self._changes:
                uid = change.object["metadata"]["uid"]
                last[uid] = max(last.get(uid, 0), change.version)
            return all(last.get(uid, 0) >= version for uid, version in newest)

        async with asyncio.timeout(30), self._grown:
            await self._grown.wait_for(seen)

    async def watch(self, kind: Kind, http: aiohttp.ClientSession, server: str, ready: asyncio.Event) -> None:
        path = server + kind.path(self._world.namespace)
        async with http.get(path) as answer:
            listed = await answer.json()
        for each in listed["items"]:
            await self._add(kind, each, gone=False)
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        async with http.get(path, params=query) as answer:
            assert answer.status == 200, await answer.text()
            ready.set()
            async for line in answer.content:
                change = json.loads(line)
                assert change["type"] in ("ADDED", "MODIFIED", "DELETED"), change
                await self._add(kind, change["object"], gone=change["type"] == "DELETED")

    async def _add(self, kind: Kind, resource: Object, *, gone: bool) -> None:
        version = int(resource["metadata"]["resourceVersion"])
        async with self._grown:
            self._changes.append(Change(version, kind, resource, gone))
            self._grown.notify_all()


@contextlib.asynccontextmanager
async def status_checker(world: World) -> AsyncIterator[StatusChecker]:
    """Watch the namespace in the block."""
    checker = StatusChecker(world)
    config = json.loads(world.kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {user['token']}"},
        connector=aiohttp.TCPConnector(ssl=context),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_LINE,
    ) as http:
        watched = [asyncio.Event() for _ in _KINDS]
        tasks = [
            asyncio.create_task(checker.watch(kind, http, cluster["server"], event))
            for kind, event in zip(_KINDS, watched, strict=True)
        ]
        try:
            await asyncio.gather(*(event.wait() for event in watched))
            yield checker
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _says_done(service: Object) -> bool:
    status = service.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
    progressing = conditions.get("Progressing", {})
    return bool(
        status.get("observedGeneration") == service["metadata"]["generation"]
        and progressing.get("status") == "False"
        and progressing.get("reason") == "AsDesired"
    )


def _moments(changes: list[Change], start: int, end: int) -> Iterator[dict[str, Change]]:
    """Yield the existing objects by UID: at `start`, then after each change before `end`."""
    there: dict[str, Change] = {}
    started = False
    for change in changes:
        if change.version >= end:
            break
        if change.version > start and not started:
            started = True
            yield there
        if change.gone:
            there.pop(change.object["metadata"]["uid"], None)
        else:
            there[change.object["metadata"]["uid"]] = change
        if started:
            yield there
    if not started:
        yield there


def _problems(there: Mapping[str, Change], service: Object, name: str) -> Iterator[str]:
    """Yield the differences between the existing objects and the service's spec."""
    spec = service["spec"]
    engine = {
        "replicas": spec["engine"]["dataParallelSize"],
        "image": spec.get("image", RELEASE.engine_image),
        "option": spec["engine"].get("maxModelLen"),
    }
    frontend = {"replicas": spec["frontend"].get("replicas", 1), "image": spec.get("image", RELEASE.frontend_image)}
    by_kind: dict[Kind, list[Object]] = defaultdict(list)
    for change in there.values():
        by_kind[change.kind].append(change.object)
    for kind, component, wanted in ((STATEFUL_SET, "engine", engine), (DEPLOYMENT, "frontend", frontend)):
        workload = next((each for each in by_kind[kind] if _name(each) == f"{name}-{component}"), None)
        if workload is None:
            yield f"there is no {kind.kind}"
            continue
        yield from (f"the {kind.kind} {problem}" for problem in _workload_problems(workload, wanted))
        pods = [each for each in by_kind[POD] if _is_pod_of(each, name, component)]
        if len(pods) != wanted["replicas"]:
            yield f"there are {len(pods)} {component} pods"
        for pod in pods:
            yield from (f"pod {_name(pod)} {problem}" for problem in _pod_problems(pod, workload))


def _workload_problems(workload: Object, wanted: Mapping[str, Any]) -> Iterator[str]:
    container = workload["spec"]["template"]["spec"]["containers"][0]
    if container["image"] != wanted["image"]:
        yield f"has image {container['image']}"
    option = wanted.get("option")
    if option is not None and str(option) not in container["args"]:
        yield f"lacks the option {option}"
    if workload["spec"]["replicas"] != wanted["replicas"]:
        yield f"has {workload['spec']['replicas']} replicas"
    if workload.get("status", {}).get("observedGeneration", 0) < workload["metadata"]["generation"]:
        yield "has not been observed by its controller"


def _pod_problems(pod: Object, workload: Object) -> Iterator[str]:
    fields = ("image", "args", "env")
    have, want = pod["spec"]["containers"][0], workload["spec"]["template"]["spec"]["containers"][0]
    if [have.get(field) for field in fields] != [want.get(field) for field in fields]:
        yield "has an older template"
    conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions", ())}
    if "deletionTimestamp" in pod["metadata"]:
        yield "is being deleted"
    elif conditions.get("Ready") != "True":
        yield "is not ready"


def _is_pod_of(pod: Object, name: str, component: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    return (labels.get("app.kubernetes.io/instance"), labels.get("app.kubernetes.io/component")) == (
        name,
        component,
    )


def _name(resource: Object) -> str:
    return str(resource["metadata"]["name"])
