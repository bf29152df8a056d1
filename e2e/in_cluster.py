"""Actions of tests in a namespace of a cluster: apply, wait, inspect, and connect to a port.

Everything uses `kubectl`, as users do. Waiting is always a watch and never a sleep.
"""

import contextlib
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from e2e.history import History, is_as_desired
from e2e.history import Object as Object
from e2e.kind.cluster import Cluster
from e2e.kind.progress import KindError

OWN_KINDS = "serviceaccounts,secrets,services,deployments,statefulsets,replicasets,pods"
"""The kinds of a service's objects in a cluster."""


@contextlib.contextmanager
def restricted_namespace(cluster: Cluster) -> Iterator["Namespace"]:
    """Create a namespace that accepts only restricted pods. Its deletion at the end is not waited for.

    Raises AssertionError at the end if a status in it ran ahead of the facts.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    history = History(cluster, name)
    try:
        yield Namespace(cluster, name, history)
        history.check()
    finally:
        history.close()
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@dataclass(frozen=True)
class Namespace:
    cluster: Cluster
    name: str
    history: History | None = None
    """None if nothing is recorded, because the namespace is shared by several tests."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, stdin=stdin)

    def apply(self, manifest: str | Object) -> str:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self.kubectl("apply", "--filename", "-", stdin=text)

    def get(self, *what: str) -> Object:
        found: Object = json.loads(self.kubectl("get", *what, "--output", "json"))
        return found

    def children(self, service: str) -> dict[str, Object]:
        """Return every object of the service of this name, except its pods, by Kind/name."""
        label = f"app.kubernetes.io/instance={service},app.kubernetes.io/managed-by=kvasir-operator"
        kinds = "serviceaccounts,secrets,services,deployments,statefulsets"
        items = self.get(kinds, "--selector", label)["items"]
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}

    def wait(self, target: str, condition: str, seconds: int = 60) -> None:
        """Run `kubectl wait --for=<condition>`. A failure shows the state of the namespace."""
        try:
            self.kubectl("wait", target, f"--for={condition}", f"--timeout={seconds}s")
        except KindError as error:
            error.add_note(self.picture())
            raise

    def wait_for_ranks(self, service: str, count: int, seconds: int = 120) -> None:
        """Wait until exactly this many engines are ready and nothing is under way.

        Raises AssertionError if the status reported this too early.
        """

        def settled(seen: Mapping[str, Object]) -> bool:
            resource = seen[service]
            status = resource.get("status", {})
            reasons = {entry["reason"] for entry in status.get("conditions", ())}
            return (
                is_as_desired(resource)
                and reasons == {"AsDesired"}
                and (status["engines"]["summary"], status["replicas"]) == (f"{count}/{count}", count)
            )

        self.until(f"kvs/{service}", settled, seconds)
        if self.history is not None:
            self.history.check()

    def until(self, what: str, holds: Callable[[Mapping[str, Object]], bool], seconds: int = 60) -> None:
        """Watch objects of one kind, all or one by `kind/name`, until `holds` returns true.

        `holds` is called after every change, with the objects by name, for the first time when there is one.
        One object is watched as a list of one: `kubectl get kind/name --watch` drops changes between its get
        and its watch.
        """
        objects: dict[str, Object] = {}
        kind, _, only = what.partition("/")
        selected = [f"--field-selector=metadata.name={only}"] if only else []
        command = ["kubectl", "--namespace", self.name, "get", kind, *selected]
        options = ["--watch", "--output-watch-events", "--output", "json"]
        environment = {**os.environ, **self.cluster.environment()}
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            patience = threading.Timer(seconds, process.kill)
            patience.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    event = json.loads(line)
                    name = event["object"]["metadata"]["name"]
                    if event["type"] == "DELETED":
                        objects.pop(name, None)
                    else:
                        objects[name] = event["object"]
                    if holds(objects):
                        return
                assert process.stderr is not None
                errors = process.stderr.read().strip()
            finally:
                patience.cancel()
                process.kill()
        raise AssertionError(f"{what} is not in the expected state after {seconds} s: {errors}\n{self.picture()}")

    def picture(self) -> str:
        """Describe the current state, for the message of a failed test."""
        parts = (
            ("get", f"kvs,{OWN_KINDS}", "-o", "wide"),
            ("get", "kvs", "-o", "jsonpath={.items[*].status}"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        )
        texts = []
        for part in parts:
            try:
                texts.append(self.kubectl(*part))
            except KindError as error:
                texts.append(str(error))
        return "\n".join(texts)

    @contextlib.contextmanager
    def forwarded(self, target: str, port: int) -> Iterator[str]:
        """Yield the URL under which `kubectl port-forward` serves a port of a pod or Service on this machine."""
        command = ["kubectl", "port-forward", "--namespace", self.name, target, f":{port}"]
        environment = {**os.environ, **self.cluster.environment()}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # "Forwarding from 127.0.0.1:41001 -> 8080"
                assert line, f"kubectl port-forward {target} ended with code {process.wait()}"
                yield f"http://{line.split()[2]}"
            finally:
                process.terminate()


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any((entry["type"], entry["status"]) == ("Ready", "True") for entry in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def idle_pod(name: str, image: str, limits: Mapping[str, str] | None = None) -> Object:
    """Return a restricted pod that does nothing and can write to /tmp."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        "name": name,
        "image": image,
        "command": ["sleep", "infinity"],
        "resources": {"limits": dict(limits or {})},
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
