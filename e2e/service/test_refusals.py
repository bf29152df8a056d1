"""What a cluster refuses to a service, or cannot give it: the status names it in a minute, and forgets it as fast.

All but the quota happen to one service that is ready: it goes on serving, and its namespace is deleted at the end.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.in_cluster import Namespace, Object, idle_pod, restricted_namespace
from e2e.installed import DEMO
from e2e.kind.cluster import Cluster
from e2e.kind.progress import KindError

MINUTE = 60


@pytest.fixture(scope="module")
def demo(installed: Cluster) -> Iterator[Namespace]:
    """The namespace in which the demo service serves."""
    with restricted_namespace(installed) as namespace:
        namespace.apply(DEMO.read_text())
        namespace.wait_for_ranks("demo", 2)
        yield namespace


def test_a_quota_on_services_is_named_until_it_is_raised(restricted: Namespace) -> None:
    """The other children are applied: engines and frontends start, and serve as soon as they have a Service."""
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    restricted.apply({**quota, "spec": {"hard": {"count/services": "1"}}})
    restricted.apply(DEMO.read_text())
    wait_for_reason(restricted, "Refused", "exceeded quota: few")
    assert {"StatefulSet/demo-engine", "Deployment/demo-frontend"} <= restricted.children("demo").keys()
    restricted.apply({**quota, "spec": {"hard": {"count/services": "10"}}})
    wait_until_forgotten(restricted, "Refused")
    restricted.wait_for_ranks("demo", 2)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        pytest.param({"secret": {"secretName": "absent"}}, "secret", id="Secret"),
        pytest.param({"configMap": {"name": "absent"}}, "configmap", id="ConfigMap"),
    ],
)
def test_a_volume_of_what_is_missing_is_named_until_it_is_there(
    demo: Namespace, source: dict[str, Any], missing: str
) -> None:
    change(demo, with_volume(source))
    wait_for_reason(demo, "VolumeFailed", "absent")
    kind = ("secret", "generic") if missing == "secret" else ("configmap",)
    demo.kubectl("create", *kind, "absent", "--from-literal=key=value")
    wait_until_forgotten(demo, "VolumeFailed")
    demo.wait_for_ranks("demo", 2)


def test_a_webhook_that_denies_is_named_until_it_allows(demo: Namespace) -> None:
    with denial(demo, "this namespace is frozen"):
        change(demo, {"maxModelLen": 512})
        wait_for_reason(demo, "Refused", "this namespace is frozen")
        assert demo.get("kvs/demo")["status"]["engines"]["summary"] == "2/2"
    wait_until_forgotten(demo, "Refused")
    demo.wait_for_ranks("demo", 2)


def test_a_typo_in_a_volume_is_named_until_it_is_mended(demo: Namespace) -> None:
    """The CRD does not have the schema of volumes, and server-side apply answers 500."""
    change(demo, with_volume({"emtyDir": {}}))
    wait_for_reason(demo, "InvalidSpec", "emtyDir")
    assert demo.get("kvs/demo")["status"]["engines"]["summary"] == "2/2"
    change(demo, with_volume({"emptyDir": {}}))
    wait_until_forgotten(demo, "InvalidSpec")
    demo.wait_for_ranks("demo", 2)


def test_pods_of_an_idle_service_leave_its_namespace_at_once(demo: Namespace) -> None:
    """They could take minutes, and have nothing to do. The last of this file: it takes the service of the others.

    The namespace itself is gone later: Kubernetes looks again after half of the longest grace period that it has
    seen among the pods, whenever they have ended.
    """
    demo.kubectl("delete", "namespace", demo.name, "--wait=false")
    demo.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=30s")


@contextlib.contextmanager
def denial(namespace: Namespace, message: str) -> Iterator[None]:
    """No StatefulSet is created or changed in the namespace; what is there stays.

    A policy of the API server's own refuses as a webhook does, and needs no server.
    """
    cluster = namespace.cluster
    name = f"kvasir-e2e-{uuid.uuid4().hex[:8]}"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["statefulsets"],
    }
    # The workload's own controller writes its status, which is another resource: statefulsets/status.
    policy: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": message, "reason": "Forbidden"}],
        },
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    binding: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    }
    try:
        for item in (policy, binding):
            cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(item))
        _wait_until_it_denies(namespace, message)
        yield
    finally:
        for item in (binding, policy):
            cluster.kubectl("delete", item["kind"], name, "--ignore-not-found")


def _wait_until_it_denies(namespace: Namespace, message: str) -> None:
    """The API server takes some moments until a policy of admission is in force."""
    probe = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "probe"},
        "spec": {
            "selector": {"matchLabels": {"app": "probe"}},
            "serviceName": "probe",
            "template": {"metadata": {"labels": {"app": "probe"}}, "spec": idle_pod("probe", "none")["spec"]},
        },
    }
    deadline = time.monotonic() + MINUTE
    while time.monotonic() < deadline:
        try:
            namespace.kubectl("create", "--dry-run=server", "--filename", "-", stdin=json.dumps(probe))
        except KindError as error:
            if message not in str(error):
                raise
            return
    raise AssertionError("the policy of admission is not in force after a minute")


def change(namespace: Namespace, engine: Object) -> None:
    """Fields of the engines of the demo service."""
    namespace.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps({"spec": {"engine": engine}}))


def with_volume(source: dict[str, Any]) -> Object:
    """A volume that the engines mount: a kubelet asks for no other."""
    mount = {"name": "extra", "mountPath": "/extra"}
    return {"pod": {"volumes": [{"name": "extra", **source}], "volumeMounts": [mount]}}


def wait_for_reason(namespace: Namespace, reason: str, words: str) -> None:
    """Until a condition has the reason, and these words in its message; at most a minute."""

    def named(seen: Mapping[str, Object]) -> bool:
        return any(entry["reason"] == reason and words in entry["message"] for entry in conditions(seen))

    namespace.until("kvs/demo", named, MINUTE)


def wait_until_forgotten(namespace: Namespace, reason: str) -> None:
    """Until no condition has the reason; at most a minute."""
    namespace.until("kvs/demo", lambda seen: all(entry["reason"] != reason for entry in conditions(seen)), MINUTE)


def conditions(seen: Mapping[str, Object]) -> list[Object]:
    found: list[Object] = seen["demo"].get("status", {}).get("conditions", [])
    return found
