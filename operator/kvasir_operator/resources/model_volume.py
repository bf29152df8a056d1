"""The volume that holds a service's model. Frontends and engines mount it read-only.

A cache has one directory for each source, so a claim that outlives its service serves its successor too.
"""

import hashlib
import re
from typing import Final

from kvasir_contract.environment import MODEL_DIRECTORY
from kvasir_operator.resources.names import workload_name
from kvasir_operator.resources.pod import Mount
from kvasir_operator.spec import InferenceService

_MAX_WORDS: Final = 64  # letters of the source in the name of its directory


def claim_name(service: InferenceService) -> str:
    """Return the claim that holds the model; "" if each pod fetches it."""
    return workload_name(service, "model") if service.model.cache else service.model.claim


def cache_directory(source: str) -> str:
    """Return the directory of a source on a cache.

    >>> cache_directory("hf://Qwen/Qwen3-0.6B@main")
    'Qwen-Qwen3-0.6B-main-a7ce98a7'
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", source.partition("://")[2])[:_MAX_WORDS].strip("-.")
    return f"{words}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def mounted_source(service: InferenceService) -> str:
    """Return the model as frontends and engines find it."""
    model = service.model
    return model.source if model.cache is None else f"file://{MODEL_DIRECTORY}/{cache_directory(model.source)}"


def model_mounts(service: InferenceService) -> list[Mount]:
    claim = claim_name(service)
    return [claim_mount(claim, read_only=True)] if claim else []


def claim_mount(claim: str, *, read_only: bool) -> Mount:
    # read-only in the container alone: a disk with a read-only source cannot be attached for writing elsewhere
    return Mount("kvasir-model", MODEL_DIRECTORY, {"persistentVolumeClaim": {"claimName": claim}}, read_only)
