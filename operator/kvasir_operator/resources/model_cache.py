"""The cache of a model: a PersistentVolumeClaim, and the Job that downloads the model into it.

The Job's name has a digest of its specification, which is immutable.
"""

import hashlib
import json
from dataclasses import replace
from typing import Final

from kvasir_contract import environment
from kvasir_contract.endpoints import ANY_HOST, LIVENESS, OPS_PORT, OPS_PORT_NAME, READINESS
from kvasir_operator.model_spec import CacheSpec
from kvasir_operator.resources.model_volume import cache_directory, claim_mount, claim_name
from kvasir_operator.resources.names import FILLED_ANNOTATION, Object, metadata
from kvasir_operator.resources.pod import http_probe, pod_template, with_default_requests, without_empty
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

_MAX_RETRIES: Final = 2**31 - 1  # with the kubelet's backoff of up to 5 minutes
_GRACE_SECONDS: Final = 5


def cache_claim(service: InferenceService, cache: CacheSpec, filled: str) -> Object:
    """Return the claim. `filled`: the directory whose download is complete, or ""."""
    annotations = {FILLED_ANNOTATION: filled} if filled else None
    about = metadata(service, claim_name(service), "model", annotations)
    if cache.retain:
        del about["ownerReferences"]
    spec = {
        "accessModes": list(cache.access_modes),
        "storageClassName": cache.storage_class_name,
        "resources": {"requests": {"storage": cache.size}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": about,
        "spec": without_empty(spec),
    }


def cache_job(service: InferenceService, release: Release) -> Object:
    # placed as the engines are, with their proxies and certificates, but without a GPU
    engine, cache = service.engine.pod, service.model.cache
    credentials = [{"secretRef": {"name": cache.credentials}}] if cache and cache.credentials else []
    pod = replace(
        engine,
        env_from=(*engine.env_from, *credentials),
        resources={},
        resource_claims=(),
        runtime_class_name=None,
        init_containers=(),
        sidecars=(),
    )
    directory = f"{environment.MODEL_DIRECTORY}/{cache_directory(service.model.source)}"
    container = {
        "image": service.frontend.image or service.image or release.frontend_image,
        "args": ["fetch", service.model.source, directory],
        "env": [
            {"name": environment.OPS_HOST, "value": ANY_HOST},
            {"name": environment.OPS_PORT, "value": str(OPS_PORT)},
        ],
        "ports": [{"name": OPS_PORT_NAME, "containerPort": OPS_PORT}],
        "resources": with_default_requests({}, cpu="500m", memory="512Mi"),
        "livenessProbe": http_probe(LIVENESS),
        "readinessProbe": http_probe(READINESS),  # never passes
    }
    mounts = [claim_mount(claim_name(service), read_only=False)]
    template = pod_template(
        service,
        "model",
        pod,
        container,
        fs_group=release.fs_group,
        link_secret="",
        mounts=mounts,
        grace=_GRACE_SECONDS,
    )
    template["spec"]["restartPolicy"] = "OnFailure"
    spec = {"backoffLimit": _MAX_RETRIES, "template": template}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{claim_name(service)}-{digest}"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(service, name, "model"), "spec": spec}
