"""The history of a namespace, which shows whether a status was ever ahead of the facts.

It keeps every version of the services, their workloads and pods. Resource versions come from one counter, so they
give the order of all writes. Each written status can therefore be compared with the state of the cluster at that
moment.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from e2e.kind.cluster import Cluster

Object = dict[str, Any]

_KINDS: Final = ("inferenceservices.serving.kvasir.dev", "statefulsets", "deployments", "pods")
_SERVICE: Final = "InferenceService"
_INSTANCE: Final = "app.kubernetes.io/instance"
_COMPONENT: Final = "app.kubernetes.io/component"
_DELIVERED_WITHIN: Final = 10.0


@dataclass(frozen=True)
class Event:
    """A version of an object; `gone` if it was deleted."""

    version: int
    gone: bool
    content: Object

    @property
    def key(self) -> tuple[str, str]:
        return self.content["kind"], self.content["metadata"]["name"]


class History:
    """The history of one namespace, from its beginning until `close`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._watches = [self._watch(kind) for kind in _KINDS]

    def close(self) -> None:
        for watch in self._watches:
            watch.kill()
            watch.wait()

    def check(self) -> None:
        """Raise AssertionError if a status so far reported that everything is as desired when it was not."""
        self._wait_for_current_state()
        with self._changed:
            events = list(self._events)
        problems = ahead_of_facts(events)
        assert not problems, "a status ran ahead of the facts:\n" + "\n".join(problems)

    def _watch(self, kind: str) -> subprocess.Popen[str]:
        options = ("--watch", "--output-watch-events", "--output", "json")
        process = subprocess.Popen(
            ["kubectl", "--namespace", self._namespace, "get", kind, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self._cluster.environment()},
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            content = event["object"]
            with self._changed:
                version = int(content["metadata"]["resourceVersion"])
                self._events.append(Event(version, event["type"] == "DELETED", content))
                self._changed.notify_all()

    def _wait_for_current_state(self) -> None:
        """Wait until the watches have delivered the current state of the API server."""
        listing = self._cluster.kubectl("--namespace", self._namespace, "get", ",".join(_KINDS), "--output", "json")
        there = {
            item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"])
            for item in json.loads(listing)["items"]
        }

        def delivered() -> bool:
            newest: dict[str, int] = {}
            gone = set()
            for event in self._events:
                uid = event.content["metadata"]["uid"]
                newest[uid] = max(event.version, newest.get(uid, 0))
                if event.gone:
                    gone.add(uid)
            current = all(newest.get(uid, 0) >= version for uid, version in there.items())
            return current and newest.keys() - gone <= there.keys()

        with self._changed:
            assert self._changed.wait_for(delivered, _DELIVERED_WITHIN), "a watch has ended or is late"


def ahead_of_facts(events: Iterable[Event]) -> list[str]:
    """Describe each written status that reported everything as desired when it was not."""
    objects: dict[tuple[str, str], Object] = {}
    problems = []
    for event in sorted(events, key=lambda event: event.version):
        before = objects.pop(event.key, {})
        if event.gone:
            continue
        objects[event.key] = event.content
        is_written = event.key[0] == _SERVICE and event.content.get("status") != before.get("status")
        if is_written and is_as_desired(event.content):
            name = event.content["metadata"]["name"]
            facts = "; ".join(under_way(name, objects))
            if facts:
                problems.append(f"{name} at resource version {event.version}: {facts}")
    return problems


def is_as_desired(service: Object) -> bool:
    """Return whether a status reports that the newest spec is in force and nothing is under way."""
    status = service.get("status", {})
    newest = status.get("observedGeneration") == service["metadata"]["generation"]
    return newest and any(
        (entry["type"], entry["status"], entry["reason"]) == ("Progressing", "False", "AsDesired")
        for entry in status.get("conditions", ())
    )


def under_way(service: str, objects: Mapping[tuple[str, str], Object]) -> list[str]:
    """Describe the workloads and pods of a service that do not have the newest template."""
    facts = []
    for kind, name in (("StatefulSet", f"{service}-engine"), ("Deployment", f"{service}-frontend")):
        workload = objects.get((kind, name))
        if workload is None:
            continue
        status = workload.get("status", {})
        generation, observed = workload["metadata"]["generation"], status.get("observedGeneration")
        if observed != generation:
            facts.append(f"{kind} {name} is at generation {generation}, but its controller has observed {observed}")
        elif kind == "StatefulSet":
            revision = status.get("updateRevision")
            old = [pod["metadata"]["name"] for pod in _engines(service, objects) if _revision(pod) != revision]
            facts += [f"{pod} is not of revision {revision}" for pod in old]
        elif status.get("updatedReplicas", 0) != status.get("replicas", 0):
            facts.append(f"{status.get('updatedReplicas', 0)} of {status['replicas']} pods of {name} are new")
    return facts


def _engines(service: str, objects: Mapping[tuple[str, str], Object]) -> Iterable[Object]:
    """Return the pods of its ranks, without those that are being deleted."""
    for (kind, _), item in objects.items():
        labels = item["metadata"].get("labels", {})
        is_engine = (labels.get(_INSTANCE), labels.get(_COMPONENT)) == (service, "engine")
        if kind == "Pod" and is_engine and "deletionTimestamp" not in item["metadata"]:
            yield item


def _revision(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("controller-revision-hash"))
