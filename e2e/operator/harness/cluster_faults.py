"""Changes by administrators and failures of machines: quotas, admission policies, nodes, Events of kubelets."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import ClusterError, Object
from kvasir_operator.cluster.kinds import EVENT, NODE, Kind

QUOTA: Final = Kind("v1", "ResourceQuota", "resourcequotas")
POLICY: Final = Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
POLICY_BINDING: Final = Kind(
    "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"
)
WEBHOOK: Final = Kind(
    "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"
)


async def set_quota(world: World, **hard: int) -> Object:
    """Allow this many objects of each kind, such as `set_quota(world, services=0)`.

    Writes the status as the quota's controller does. The usage counts as 0, so `hard` limits the number of new
    objects.
    """
    limits = {kind: str(count) for kind, count in hard.items()}
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota", "namespace": world.namespace},
        "spec": {"hard": limits},
        "status": {"hard": limits, "used": dict.fromkeys(limits, "0")},
    }
    await world.cluster.apply(QUOTA, body, force=True)
    return await world.cluster.apply(QUOTA, body, force=True, subresource="status")


@contextlib.asynccontextmanager
async def denied(world: World, group: str, resources: str, *, reason: str = "Forbidden") -> AsyncIterator[None]:
    """Deny to create or update these resources in the namespace, with 403 for Forbidden or 422 for Invalid."""
    name = f"denied-{uuid.uuid4().hex[:8]}"
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resources]}
    ]
    here = {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}
    policy = {
        "apiVersion": POLICY.api_version,
        "kind": POLICY.kind,
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": here},
            "validations": [{"expression": "false", "message": "the test denies it", "reason": reason}],
        },
    }
    binding = {
        "apiVersion": POLICY_BINDING.api_version,
        "kind": POLICY_BINDING.kind,
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    made = [
        (POLICY, await world.cluster.create(POLICY, "", policy)),
        (POLICY_BINDING, await world.cluster.create(POLICY_BINDING, "", binding)),
    ]
    kind = Kind(f"{group}/v1" if group else "v1", "", resources)
    try:
        await world.eventually(lambda: _is_denied(world, kind))
        yield
    finally:
        for of_kind, each in made:
            each["metadata"]["namespace"] = ""
            await world.cluster.delete(of_kind, each)

        async def allowed() -> bool:
            return not await _is_denied(world, kind)

        await world.eventually(allowed)


@contextlib.asynccontextmanager
async def broken_webhook(world: World, group: str, resources: str) -> AsyncIterator[None]:
    """Register a webhook that does not respond for these resources, so that requests fail with 500."""
    name = f"broken-{uuid.uuid4().hex[:8]}.example.com"
    rules = [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": [resources]}]
    webhook = {
        "name": name,
        "rules": rules,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 1,
    }
    body = {
        "apiVersion": WEBHOOK.api_version,
        "kind": WEBHOOK.kind,
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    made = await world.cluster.create(WEBHOOK, "", body)
    kind = Kind(f"{group}/v1" if group else "v1", "", resources)
    try:
        await world.eventually(lambda: _is_denied(world, kind))
        yield
    finally:
        made["metadata"]["namespace"] = ""
        await world.cluster.delete(WEBHOOK, made)

        async def allowed() -> bool:
            return not await _is_denied(world, kind)

        await world.eventually(allowed)


async def _is_denied(world: World, kind: Kind) -> bool:
    """Return whether the API server enforces the rule yet, according to a dry-run request."""
    body: Object = {"apiVersion": kind.api_version, "metadata": {"generateName": "asked-"}}
    selector = {"matchLabels": {"a": "b"}}
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    kinds = {
        "statefulsets": {"kind": "StatefulSet", "spec": {"selector": selector, "template": pod}},
        "deployments": {"kind": "Deployment", "spec": {"selector": selector, "template": pod}},
        "services": {"kind": "Service", "spec": {"ports": [{"port": 1}]}},
    }
    try:
        await world.request("POST", kind.path(world.namespace), {**body, **kinds[kind.plural]}, {"dryRun": "All"})
    except ClusterError as error:
        return "the test denies it" in str(error) or "failed calling webhook" in str(error)
    return False


# ---------------------------------------------------------------------------------------------------------- nodes


@contextlib.asynccontextmanager
async def node(world: World, name: str = "node", *, ready: str | None = "True") -> AsyncIterator[str]:
    """Create a node for this test. `ready` is the status of its condition; None for a node without conditions."""
    full = f"{name}-{world.namespace}"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": full}}
    made = await world.cluster.create(NODE, "", body)
    if ready is not None:
        await set_node(world, full, ready)
    try:
        yield full
    finally:
        made["metadata"]["namespace"] = ""
        await world.cluster.delete(NODE, made)


async def set_node(world: World, name: str, ready: str) -> None:
    """Set the node's condition. True and False: its kubelet reports. Unknown: it does not report any more."""
    reasons = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}
    condition = {"type": "Ready", "status": ready, "reason": reasons[ready], "message": reasons[ready]}
    body = {"status": {"conditions": [condition]}}
    path = NODE.path(None, name, "status")
    content = "application/strategic-merge-patch+json"
    await world.cluster._request("PATCH", path, {"fieldManager": "somebody"}, body, content)


async def cordon(world: World, name: str, cordoned: bool = True) -> None:
    await _patch_node(world, name, {"unschedulable": cordoned})


async def taint(world: World, name: str, key: str) -> None:
    """Taint a node without a cordon, as an autoscaler does before it removes the node."""
    await _patch_node(world, name, {"taints": [{"key": key, "effect": "NoSchedule"}]})


async def _patch_node(world: World, name: str, spec: Object) -> None:
    body = {"spec": spec}
    content = "application/merge-patch+json"
    await world.cluster._request("PATCH", NODE.path(None, name), {"fieldManager": "somebody"}, body, content)


# --------------------------------------------------------------------------------------------------------- Events


async def write_event(world: World, pod: Object, reason: str, message: str, uid: str | None = None) -> None:
    """Write an Event about the pod, as its kubelet does."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"event-{uuid.uuid4().hex[:12]}", "namespace": world.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "namespace": world.namespace,
            "uid": uid or pod["metadata"]["uid"],
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    await world.cluster.create(EVENT, world.namespace, body)
