"""The engines of an InferenceService: a StatefulSet whose ordinals are the data-parallel ranks."""

from typing import Any, Final

from kvasir_operator.resources.names import (
    LINK_PORT,
    OPS_PORT,
    labels,
    selector_labels,
    workload_name,
)
from kvasir_operator.resources.pod import (
    KILL_MARGIN,
    Images,
    Mount,
    Object,
    http_probe,
    option_args,
    pod_template,
    seconds,
)
from kvasir_operator.spec import InferenceService, Pod

LOST_NODE_SECONDS: Final = 30
"""How long an engine stays bound to a node that is gone; its requests have moved on by then."""
SHARED_MEMORY: Final = "1Gi"
"""Upper bound of /dev/shm; memory is taken only as it is used."""


def engine_stateful_set(service: InferenceService, images: Images) -> Object:
    """All ranks start at once; the operator replaces pods of an old revision itself, hence OnDelete."""
    name = workload_name(service, "engine")
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": service.namespace, "labels": labels(service, "engine")},
        "spec": {
            "replicas": service.engine.data_parallel_size,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector_labels(service, "engine")},
            "template": engine_template(service, images),
        },
    }


def engine_template(service: InferenceService, images: Images) -> Object:
    container = {
        "image": service.image or images.engine,
        "args": ["engine", service.model.source, *_options(service), *service.engine.extra_args],
        "env": _environment(service),
        "ports": [{"name": "ops", "containerPort": OPS_PORT}],
        "resources": _resources(service),
        # No start-up probe with a fixed budget: liveness passes while loading makes progress or steps advance.
        "livenessProbe": http_probe("/health/live", "ops", period=10, timeout=5, failures=3),
        "readinessProbe": http_probe("/health/ready", "ops", period=5, timeout=2, failures=2),
    }
    template = pod_template(
        service,
        "engine",
        service.engine.pod,
        container,
        mounts=[Mount("kvasir-shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}})],
        grace=service.rollout.drain_timeout + KILL_MARGIN,
    )
    template["spec"]["tolerations"] = _tolerations(service.engine.pod)
    return template


def _options(service: InferenceService) -> list[str]:
    engine, cache = service.engine, service.engine.kv_cache
    on_gpu = engine.resource_name != ""
    return option_args(
        served_model_name=service.model.served_names,
        max_model_len=engine.max_model_len,
        device="cuda" if on_gpu else "cpu",
        dtype=engine.dtype,
        block_size=cache.block_size,
        kv_cache_memory_bytes=cache.memory,
        gpu_memory_utilization=cache.memory_utilization if on_gpu and cache.memory is None else None,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        drain_timeout=seconds(service.rollout.drain_timeout),
    )


def _environment(service: InferenceService) -> list[Object]:
    rank = {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    return [
        {"name": "KVASIR_LINK", "value": f"tcp://{workload_name(service, 'frontend')}:{LINK_PORT}"},
        {"name": "KVASIR_DATA_PARALLEL_RANK", "valueFrom": rank},
        {"name": "KVASIR_OPS_HOST", "value": "0.0.0.0"},
        {"name": "KVASIR_OPS_PORT", "value": str(OPS_PORT)},
    ]


def _resources(service: InferenceService) -> Object:
    resources: dict[str, Any] = {kind: dict(amounts) for kind, amounts in service.engine.pod.resources.items()}
    if service.engine.resource_name:
        resources.setdefault("limits", {})[service.engine.resource_name] = "1"
    return resources


def _tolerations(pod: Pod) -> list[Object]:
    """The user's, and ours for a lost node unless the user says otherwise about that taint."""
    theirs = [dict(toleration) for toleration in pod.tolerations]
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if all(toleration.get("key", key) != key for toleration in theirs)
    ]
    return [*ours, *theirs]
