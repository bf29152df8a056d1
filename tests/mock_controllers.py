"""Kubernetes' workload controllers for the objects of a mock cluster."""

import hashlib
import json
from typing import TYPE_CHECKING, Final

from kvasir_contract.api import COMPONENT_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL, MANAGER
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import EVENT, POD, STATEFUL_SET, Kind

if TYPE_CHECKING:
    from mock_cluster import MockCluster

_READY: Final = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]

NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
"""One of the tolerations that the API server adds to each pod."""


def run_controller(cluster: "MockCluster", kind: Kind, workload: Object) -> None:
    metadata, spec = workload["metadata"], workload["spec"]
    revision = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:8]
    replicas = spec.get("replicas", 1)
    workload["status"] = {
        "observedGeneration": metadata["generation"],
        "updateRevision": revision,
        "replicas": replicas,
        "updatedReplicas": replicas,
    }
    owner = metadata if kind is STATEFUL_SET else {"name": f"{metadata['name']}-{revision}", "uid": "uid-rs"}
    owner_kind = "StatefulSet" if kind is STATEFUL_SET else "ReplicaSet"
    pods = {f"{owner['name']}-{ordinal}" for ordinal in range(replicas)}
    for name in cluster.names(POD):
        if name.startswith(f"{metadata['name']}-") and name not in pods:
            cluster.remove(POD, name, metadata["namespace"])
    for name in pods & cluster.forbidden:
        _forbid(cluster, name, workload)
    reference = {"kind": owner_kind, "name": owner["name"], "uid": owner["uid"], "controller": True}
    for name in pods - cluster.forbidden - set(cluster.names(POD)):
        cluster.put(POD, _ready_pod(name, metadata, revision, reference))


def _ready_pod(name: str, workload: Object, revision: str, owner: Object) -> Object:
    component = workload["labels"][COMPONENT_LABEL]
    labels = {
        INSTANCE_LABEL: workload["labels"][INSTANCE_LABEL],
        MANAGED_BY_LABEL: MANAGER,
        COMPONENT_LABEL: component,
        "controller-revision-hash": revision,
    }
    return {
        "metadata": {
            "name": name,
            "namespace": workload["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": component, "image": "image:1"}],
            "tolerations": [NOT_READY],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": _READY,
            "containerStatuses": [{"name": component, "state": {"running": {}}, "restartCount": 0}],
        },
    }


def _forbid(cluster: "MockCluster", name: str, workload: Object) -> None:
    metadata = workload["metadata"]
    event = {
        "metadata": {"name": f"{name}.1", "namespace": metadata["namespace"]},
        "involvedObject": {"uid": metadata["uid"]},
        "reason": "FailedCreate",
        "lastTimestamp": cluster.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        "message": f"create Pod {name} in StatefulSet {metadata['name']} failed error: exceeded quota: pods",
    }
    cluster.put(EVENT, event)
