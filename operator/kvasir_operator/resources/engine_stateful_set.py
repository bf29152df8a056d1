"""The StatefulSet of the engines; its ordinals are the data-parallel ranks."""

import math
from typing import Final

from kvasir_contract import environment
from kvasir_contract.endpoints import (
    ANY_HOST,
    KILL_MARGIN_SECONDS,
    KV_HAND_OVER_PORT,
    KV_HAND_OVER_PORT_NAME,
    LINK_PORT,
    LIVENESS,
    OPS_PORT,
    OPS_PORT_NAME,
    READINESS,
)
from kvasir_contract.units import format_duration
from kvasir_operator.resources.model_volume import model_mounts, mounted_source
from kvasir_operator.resources.names import POD_INDEX_LABEL, Object, metadata, selector_labels, workload_name
from kvasir_operator.resources.pinning import workload_annotations
from kvasir_operator.resources.pod import Mount, http_probe, option_args, pod_template, with_default_requests
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

# Upper bound of /dev/shm per worker. NCCL keeps buffers there, up to some hundred MiB per GPU.
SHARED_MEMORY_GIB: Final = 1

_CPU_WORKER_BYTES: Final = 512 * 2**20  # the process and a small model
_CPU_KV_CACHE_BYTES: Final = 2**30  # the runtime's default


def engine_stateful_set(service: InferenceService, release: Release, link_secret: str) -> Object:
    # ranks start at once, and the operator itself replaces old pods
    name = workload_name(service, "engine")
    template = engine_template(service, release, link_secret)
    annotations = workload_annotations(service, "engine", release, link_secret, template)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(service, name, "engine", annotations),
        "spec": {
            "replicas": service.engine.pods,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector_labels(service, "engine")},
            "template": template,
        },
    }


def hands_kv_over(service: InferenceService) -> bool:
    """Return whether KV blocks are in host memory, so that other engines can fetch them."""
    return service.engine.workers == 1 and not service.engine.resource_name


def engine_template(service: InferenceService, release: Release, link_secret: str) -> Object:
    container = {
        "image": service.engine.image or service.image or release.engine_image,
        "args": ["engine", mounted_source(service), *_options(service), *service.engine.extra_args],
        "env": _environment(service),
        "ports": _ports(service),
        "resources": _resources(service),
        # No startup probe with a fixed budget: liveness passes while loading or steps make progress.
        "livenessProbe": http_probe(LIVENESS),
        "readinessProbe": http_probe(READINESS),
    }
    limit = f"{service.engine.workers_per_pod * SHARED_MEMORY_GIB}Gi"
    shared_memory = {"emptyDir": {"medium": "Memory", "sizeLimit": limit}}
    return pod_template(
        service,
        "engine",
        service.engine.pod,
        container,
        fs_group=release.fs_group,
        link_secret=link_secret,
        mounts=[Mount("kvasir-shm", environment.SHM_DIRECTORY, shared_memory), *model_mounts(service)],
        grace=service.rollout.drain_timeout + KILL_MARGIN_SECONDS,
    )


def _options(service: InferenceService) -> list[str]:
    engine, cache = service.engine, service.engine.kv_cache
    on_gpu = engine.resource_name != ""
    options = option_args(
        served_model_name=service.model.served_names,
        task=None if service.model.task == "auto" else service.model.task,
        quantization=None if service.model.quantization == "auto" else service.model.quantization,
        max_model_len=engine.max_model_len,
        device="cuda" if on_gpu else "cpu",
        dtype=engine.dtype,
        block_size=cache.block_size,
        kv_cache_memory_bytes=cache.memory,
        gpu_memory_utilization=cache.memory_utilization if on_gpu and cache.memory is None else None,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        tensor_parallel_size=_several(engine.tensor_parallel_size),
        pipeline_parallel_size=_several(engine.pipeline_parallel_size),
        nnodes=_several(engine.nodes),
        master_addr=_master_address(service) if engine.nodes > 1 else None,
        drain_timeout=format_duration(service.rollout.drain_timeout),
    )
    return [*options, "--enable-lora"] if service.model.takes_adapters else options


def _several(size: int) -> int | None:
    # an omitted option keeps the pods of existing services
    return size if size > 1 else None


def _master_address(service: InferenceService) -> str:
    # each pod replaces {leader} by the ordinal of its rank's first pod
    name = workload_name(service, "engine")
    return f"{name}-{{leader}}.{name}"


def _ports(service: InferenceService) -> list[Object]:
    ops = {"name": OPS_PORT_NAME, "containerPort": OPS_PORT}
    hand_over = {"name": KV_HAND_OVER_PORT_NAME, "containerPort": KV_HAND_OVER_PORT}
    return [ops, hand_over] if hands_kv_over(service) else [ops]


def _environment(service: InferenceService) -> list[Object]:
    place = environment.DATA_PARALLEL_RANK if service.engine.nodes == 1 else environment.POD_INDEX
    of_the_pod = {place: f"metadata.labels['{POD_INDEX_LABEL}']"}
    if hands_kv_over(service):
        of_the_pod[environment.POD_IP] = "status.podIP"
    return [
        {"name": environment.LINK, "value": f"tcp://{workload_name(service, 'frontend')}:{LINK_PORT}"},
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in of_the_pod.items()),
        {"name": environment.OPS_HOST, "value": ANY_HOST},
        {"name": environment.OPS_PORT, "value": str(OPS_PORT)},
        {"name": environment.BLACK_BOX, "value": environment.BLACK_BOX_FILE},
    ]


def _resources(service: InferenceService) -> Object:
    engine = service.engine
    workers = engine.workers_per_pod
    resources = dict(engine.pod.resources)
    if not engine.resource_name:
        memory = workers * (_CPU_WORKER_BYTES + (engine.kv_cache.memory or _CPU_KV_CACHE_BYTES))
        return with_default_requests(resources, cpu=f"{workers * 250}m", memory=f"{math.ceil(memory / 2**20)}Mi")
    amount = {engine.resource_name: str(workers)}
    resources["limits"] = {**resources.get("limits", {}), **amount}
    # A node with one GPU often has 4 CPUs and 16 GiB, about 3.9 CPUs and 13 GiB of them for pods.
    return with_default_requests(resources, cpu=str(1 + workers), memory=f"{4 + 4 * workers}Gi")
