"""Converts the API server's dictionaries to the typed facts of `observed`."""

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from kvasir_contract.api import (
    API_VERSION,
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    KIND,
    MANAGED_BY_LABEL,
    MANAGER,
)
from kvasir_operator.observe.observed import (
    ChildObject,
    Container,
    Ended,
    Object,
    Ownership,
    Pod,
    RequestedRanks,
    WorkloadState,
)
from kvasir_operator.resources.names import FETCH_CONTAINER, RANKS_ANNOTATION, workload_name
from kvasir_operator.spec import InferenceService

REVISION_LABEL: Final = "controller-revision-hash"
# of autoscalers and clouds that remove a node
DRAIN_TAINTS: Final = (
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
)


def child_of(resource: Object, service: InferenceService) -> ChildObject:
    leaves = is_terminating(resource) or _owner_is_gone(resource, service)
    return ChildObject(resource, _ownership(resource, service), leaves)


def is_terminating(resource: Object) -> bool:
    return "deletionTimestamp" in resource["metadata"]


def is_leaving_frontend(pod: Object) -> bool:
    # its container may still run requests
    return pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) == "frontend" and is_terminating(pod)


def controller_of(resource: Object) -> Mapping[str, Any]:
    """Return the owner reference of the controller; {} without one."""
    owners = resource["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), {})


def workload_of(resource: Object) -> WorkloadState:
    metadata, spec, status = resource["metadata"], resource["spec"], resource.get("status", {})
    return WorkloadState(
        uid=metadata["uid"],
        replicas=spec.get("replicas", 1),
        is_observed=status.get("observedGeneration", 0) >= metadata["generation"],
        revision=status.get("updateRevision", ""),
        pods=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        failure=_replica_failure(status),
        applies_replicas=any(
            "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
            for entry in metadata.get("managedFields", ())
            if (entry.get("manager"), entry.get("operation")) == (MANAGER, "Apply")
        ),
        ranks=_ranks(metadata),
    )


def _ranks(metadata: Mapping[str, Any]) -> int | None:
    text = (metadata.get("annotations") or {}).get(RANKS_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


def requested_ranks(service: Object) -> RequestedRanks:
    managers = [
        entry["manager"]
        for entry in service["metadata"].get("managedFields", ())
        if entry.get("subresource") == "scale"
        and "f:dataParallelSize" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:engine", {})
    ]
    return RequestedRanks(service["spec"]["engine"]["dataParallelSize"], next(iter(managers), ""))


def pod_of(resource: Object) -> Pod:
    metadata, spec, status = resource["metadata"], resource["spec"], resource.get("status", {})
    labels = metadata.get("labels", {})
    scheduled = _condition(status, "PodScheduled")
    component = labels.get(COMPONENT_LABEL, "")
    terminating = is_terminating(resource)
    init_containers = [
        _container(entry["name"], spec, status, "initContainers") for entry in spec.get("initContainers") or ()
    ]
    return Pod(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        component=component,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        addresses=_addresses(status),
        revision=labels.get(REVISION_LABEL, ""),
        terminating=terminating,
        ready=_condition(status, "Ready").get("status") == "True" and not terminating,
        has_ended=status.get("phase") in ("Failed", "Succeeded"),
        end_message=status.get("message") or status.get("reason") or "",
        scheduled=_SCHEDULED.get(scheduled.get("status", "True" if spec.get("nodeName") else "")),
        schedule_message=scheduled.get("message", ""),
        scheduling_changed=scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp", ""),
        container=_container(component, spec, status),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        init_containers=tuple(each for each in init_containers if each.name != FETCH_CONTAINER),
        fetch=next((each for each in init_containers if each.name == FETCH_CONTAINER), None),
        sidecars=tuple(
            _container(entry["name"], spec, status)
            for entry in spec.get("containers") or ()
            if entry["name"] != component
        ),
        tolerations=tuple(spec.get("tolerations") or ()),
    )


def _addresses(status: Object) -> frozenset[str]:
    found = [status.get("podIP", ""), *(entry.get("ip", "") for entry in status.get("podIPs") or ())]
    return frozenset(str(ip_address(address)) for address in found if address)


_SCHEDULED: Final = {"True": True, "False": False}


# a pod of another name is not an engine's: owner references can be forged
_ORDINAL: Final = re.compile(r"-(0|[1-9][0-9]{0,5})$", re.ASCII)


def engine_pods(pods: Sequence[Object], stateful_set: WorkloadState | None) -> list[Pod]:
    if stateful_set is None:
        return []
    owned = (pod for pod in pods if controller_of(pod).get("uid") == stateful_set.uid)
    return [pod_of(pod) for pod in owned if _ORDINAL.search(pod["metadata"]["name"])]


def frontend_pods(pods: Sequence[Object], service: InferenceService) -> list[Pod]:
    # without terminating and ended pods, which have successors
    prefix = f"{workload_name(service, 'frontend')}-"
    owned = [
        pod_of(pod)
        for pod in pods
        if controller_of(pod).get("kind") == "ReplicaSet" and controller_of(pod)["name"].startswith(prefix)
    ]
    return [pod for pod in owned if pod.component == "frontend" and not pod.terminating and not pod.has_ended]


def fetching_pods(pods: Sequence[Object]) -> list[Pod]:
    owned = [pod_of(pod) for pod in pods if controller_of(pod).get("kind") == "Job"]
    return [pod for pod in owned if pod.component == "model" and not pod.terminating and not pod.has_ended]


def node_problem(node: Object) -> str:
    # Ready=False comes from the kubelet itself, which is alive and ends its pods.
    ready = _condition(node.get("status", {}), "Ready")
    if ready.get("status") != "Unknown":
        return ""
    return f"node {node['metadata']['name']} does not respond ({ready.get('message') or ready.get('reason')})"


def event_time(event: Object) -> str:
    """Return when an Event last occurred (RFC 3339), from the fields of old and new Events."""
    series = event.get("series") or {}
    return str(event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime") or "")


def _owner_is_gone(resource: Object, service: InferenceService) -> bool:
    # The owner is an earlier service of this name, so the object will be deleted.
    owner = controller_of(resource)
    named = (owner.get("apiVersion"), owner.get("kind"), owner.get("name"))
    return named == (API_VERSION, KIND, service.name) and owner["uid"] != service.uid


def _ownership(resource: Object, service: InferenceService) -> Ownership:
    controller = controller_of(resource)
    if controller:
        return Ownership.OURS if controller["uid"] == service.uid else Ownership.FOREIGN
    labels = resource["metadata"].get("labels", {})
    labelled = (labels.get(MANAGED_BY_LABEL), labels.get(INSTANCE_LABEL)) == (MANAGER, service.name)
    applied = any(
        (entry.get("manager"), entry.get("operation")) == (MANAGER, "Apply")
        for entry in resource["metadata"].get("managedFields", ())
    )
    return Ownership.ORPHAN if labelled and applied else Ownership.FOREIGN


def _replica_failure(status: Mapping[str, Any]) -> str:
    failure = _condition(status, "ReplicaFailure")
    return str(failure.get("message", "")) if failure.get("status") == "True" else ""


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((entry for entry in status.get("conditions", ()) if entry["type"] == kind), {})


def _container(
    name: str, spec: Mapping[str, Any], status: Mapping[str, Any], kind: str = "containers"
) -> Container:
    # `kind` is the field that declares it

    def named(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return next((entry for entry in entries if entry["name"] == name), {})

    declared = named(spec.get(kind) or ())
    found = named(status.get("initContainerStatuses" if kind == "initContainers" else "containerStatuses") or ())
    state = found.get("state", {})
    waiting = state.get("waiting", {})
    return Container(
        image=declared.get("image", ""),
        state=next(iter(state), ""),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended=_ended(state.get("terminated")),
        ended_before=_ended(found.get("lastState", {}).get("terminated")),
        restarts=found.get("restartCount", 0),
        name=name,
        ready=found.get("ready", False),
    )


def _ended(terminated: Mapping[str, Any] | None) -> Ended | None:
    if terminated is None:
        return None
    out_of_memory = terminated.get("reason") == "OOMKilled"
    return Ended(terminated.get("exitCode", 0), out_of_memory, terminated.get("message", ""))
