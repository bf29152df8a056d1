"""Keeps a workload's pod template when the operator is upgraded.

Annotations record the release that made the template, a digest of the user's inputs, and the template as applied.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Final

from kvasir_operator.resources.names import (
    INPUTS_ANNOTATION,
    RELEASE_ANNOTATION,
    TEMPLATE_ANNOTATION,
    Component,
    Object,
)
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

MAX_TEMPLATE_BYTES: Final = 128 * 1024  # the API server accepts 256 KiB of annotations
# the number of pods is not part of a template
_COUNTS: Final = {"engine": ("data_parallel_size",), "frontend": ("replicas", "is_autoscaled")}
# not part of a template, or of one of them only
_OTHERS: Final = (
    *("engine", "frontend", "rollout", "network", "autoscaling", "expose", "paused", "operator_class"),
    *("applied", "written", "default_pull_secrets"),
)


def workload_annotations(
    service: InferenceService, component: Component, release: Release, link_secret: str, template: Object
) -> dict[str, str]:
    annotations = {
        INPUTS_ANNOTATION: inputs(service, component, link_secret),
        RELEASE_ANNOTATION: release.id,
    }
    text = _canonical(template)
    if len(text.encode()) <= MAX_TEMPLATE_BYTES:
        annotations[TEMPLATE_ANNOTATION] = text
    return annotations


def inputs(service: InferenceService, component: Component, link_secret: str) -> str:
    """Return a digest of all inputs of the template except the release, and the profile, which is part of it."""
    service = service.written or service
    user: dict[str, Any] = {
        # the adapters are in a ConfigMap
        **_set_fields(
            replace(service, model=replace(service.model, lora_adapters=None, cache=None)), without=_OTHERS
        ),
        component: _set_fields(getattr(service, component), without=_COUNTS[component]),
        "max_model_len": service.engine.max_model_len,
        "link_secret": link_secret,
    }
    if service.model.takes_adapters:
        user["takes_adapters"] = True
    if component == "frontend" and service.expose is not None and service.expose.root_path:
        user["root_path"] = service.expose.root_path
    if service.model.cache is not None:
        user["is_cached"] = True  # its size is not part of a template
    if component == "engine":
        user["drain_timeout"] = service.rollout.drain_timeout
    return hashlib.sha256(_canonical(user).encode()).hexdigest()[:16]


def keep_template(desired: Object, existing: Object) -> Object | None:
    """Return `desired` with the template of `existing`, or None if that one is not recorded."""
    old: Mapping[str, str] = existing["metadata"].get("annotations") or {}
    try:
        template = json.loads(old[TEMPLATE_ANNOTATION])
        kept = {name: old[name] for name in (INPUTS_ANNOTATION, RELEASE_ANNOTATION, TEMPLATE_ANNOTATION)}
    except (KeyError, ValueError):
        return None
    if not isinstance(template, dict):
        return None
    annotations = {**desired["metadata"]["annotations"], **kept}
    return {
        **desired,
        "metadata": {**desired["metadata"], "annotations": annotations},
        "spec": {**desired["spec"], "template": template},
    }


def pin(desired: Object, existing: Object) -> Object:
    """Return `desired`, with the template of `existing` if the two differ only in the operator's release."""
    old: Mapping[str, str] = existing["metadata"].get("annotations") or {}
    new: Mapping[str, str] = desired["metadata"]["annotations"]
    if old.get(INPUTS_ANNOTATION) != new[INPUTS_ANNOTATION]:
        return desired
    if old.get(RELEASE_ANNOTATION) in (None, new[RELEASE_ANNOTATION]):
        return desired
    if old.get(TEMPLATE_ANNOTATION) == new.get(TEMPLATE_ANNOTATION):
        return desired
    return keep_template(desired, existing) or desired


def _set_fields(part: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    # Without defaults, so that a release that adds a field does not change existing digests.
    values = {}
    for field in fields(part):
        value = getattr(part, field.name)
        is_default = field.default is not MISSING and value == field.default
        if field.name not in without and not is_default and value not in (None, (), {}, ""):
            values[field.name] = _set_fields(value) if is_dataclass(value) else value
    return values


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
