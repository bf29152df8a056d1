"""The fields `engine.pod` and `frontend.pod` of an InferenceService."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvasir_operator.spec_values import parse_quantity, parsed

Json = Mapping[str, Any]  # passed on unchanged


@dataclass(frozen=True)
class PodSpec:
    """The user's additions to the pods of a component, in the format of Kubernetes."""

    resources: Json
    node_selector: Json
    tolerations: tuple[Json, ...]
    affinity: Json
    topology_spread_constraints: tuple[Json, ...]
    priority_class_name: str | None
    runtime_class_name: str | None
    env: tuple[Json, ...]
    env_from: tuple[Json, ...]
    volumes: tuple[Json, ...]
    volume_mounts: tuple[Json, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    # Fields with defaults are not part of the digest of a service that does not set them.
    security_context: Json = field(default_factory=dict)  # of the container
    pod_security_context: Json = field(default_factory=dict)
    scheduler_name: str | None = None
    service_account_name: str | None = None
    resource_claims: tuple[Json, ...] = ()
    init_containers: tuple[Json, ...] = ()
    sidecars: tuple[Json, ...] = ()


def parse_pod(pod: Json, where: str) -> PodSpec:
    def listed(field: str) -> tuple[Json, ...]:
        entries: Sequence[Json] = pod.get(field, ())
        return tuple(entries)

    return PodSpec(
        resources=_resources(pod.get("resources", {}), f"{where}.resources"),
        node_selector=pod.get("nodeSelector", {}),
        tolerations=listed("tolerations"),
        affinity=pod.get("affinity", {}),
        topology_spread_constraints=listed("topologySpreadConstraints"),
        priority_class_name=pod.get("priorityClassName"),
        runtime_class_name=pod.get("runtimeClassName"),
        env=listed("env"),
        env_from=listed("envFrom"),
        volumes=listed("volumes"),
        volume_mounts=listed("volumeMounts"),
        labels=pod.get("labels", {}),
        annotations=pod.get("annotations", {}),
        security_context=pod.get("securityContext", {}),
        pod_security_context=pod.get("podSecurityContext", {}),
        scheduler_name=pod.get("schedulerName"),
        service_account_name=pod.get("serviceAccountName"),
        resource_claims=listed("resourceClaims"),
        init_containers=listed("initContainers"),
        sidecars=listed("sidecars"),
    )


def _resources(resources: Json, where: str) -> Json:
    return {
        kind: {name: parsed(parse_quantity, amounts, name, f"{where}.{kind}") for name in amounts}
        for kind, amounts in resources.items()
    }
