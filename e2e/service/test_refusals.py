"""A cluster rejects parts of a service or cannot provide them. The status reports and clears this within a minute.

All cases except the quota use one ready service, which must continue to serve. Its namespace is deleted at the end.
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
def test_a_volume_of_a_missing_object_is_named_until_it_exists(
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
    """The CRD does not contain the schema of volumes, so server-side apply returns 500."""
    change(demo, with_volume({"emtyDir": {}}))
    wait_for_reason(demo, "InvalidSpec", "emtyDir")
    assert demo.get("kvs/demo")["status"]["engines"]["summary"] == "2/2"
    change(demo, with_volume({"emptyDir": {}}))
    wait_until_forgotten(demo, "InvalidSpec")
    demo.wait_for_ranks("demo", 2)


def test_pods_of_an_idle_service_leave_its_namespace_at_once(demo: Namespace) -> None:
    """Pods of an idle service must not wait for their grace period.

    This test is the last of the file, because it deletes the service of the others. The namespace itself is deleted
    later: Kubernetes waits for half of the longest grace period of its pods.
    """
    demo.kubectl("delete", "namespace", demo.name, "--wait=false")
    demo.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=30s")


@contextlib.contextmanager
def denial(namespace: Namespace, message: str) -> Iterator[None]:
    """Deny to create or update StatefulSets in the namespace. Existing ones are kept.

    A policy of the API server rejects requests as a webhook does, but needs no server.
    """
    cluster = namespace.cluster
    name = f"kvasir-e2e-{uuid.uuid4().hex[:8]}"
    policy, binding = _denying_policy(name, namespace.name, message)
    try:
        for item in (policy, binding):
            cluster.kubectl("apply", "--filename", "-", stdin=json.dumps(item))
        _wait_until_it_denies(namespace, message)
        yield
    finally:
        for item in (binding, policy):
            cluster.kubectl("delete", item["kind"], name, "--ignore-not-found")


def _denying_policy(name: str, namespace: str, message: str) -> tuple[Object, Object]:
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["statefulsets"],
    }
    # The StatefulSet controller writes the status through another resource, statefulsets/status.
    policy: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": message, "reason": "Forbidden"}],
        },
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
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
    return policy, binding


def _wait_until_it_denies(namespace: Namespace, message: str) -> None:
    """Wait until the API server enforces the admission policy, which takes some time."""
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
    raise AssertionError("the admission policy is not in force after a minute")


def change(namespace: Namespace, engine: Object) -> None:
    """Change fields of the demo service's engines."""
    namespace.kubectl("patch", "kvs/demo", "--type=merge", "--patch", json.dumps({"spec": {"engine": engine}}))


def with_volume(source: dict[str, Any]) -> Object:
    """Return fields with a volume that the engines mount. A kubelet fetches only mounted volumes."""
    mount = {"name": "extra", "mountPath": "/extra"}
    return {"pod": {"volumes": [{"name": "extra", **source}], "volumeMounts": [mount]}}


def wait_for_reason(namespace: Namespace, reason: str, words: str) -> None:
    """Wait at most a minute until a condition has this reason, with these words in its message."""

    def named(seen: Mapping[str, Object]) -> bool:
        return any(entry["reason"] == reason and words in entry["message"] for entry in conditions(seen))

    namespace.until("kvs/demo", named, MINUTE)


def wait_until_forgotten(namespace: Namespace, reason: str) -> None:
    """Wait at most a minute until no condition has the reason."""
    namespace.until("kvs/demo", lambda seen: all(entry["reason"] != reason for entry in conditions(seen)), MINUTE)


def conditions(seen: Mapping[str, Object]) -> list[Object]:
    found: list[Object] = seen["demo"].get("status", {}).get("conditions", [])
    return found
