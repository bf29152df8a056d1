"""Every field of an InferenceService that can be changed in place, with a new value for it.

The fields come from the CRD. The values come from VALUES, or else from the example that sets every field. A field
without a value fails the test of all changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.operator.harness.schema_rules import CRD

EXAMPLE: Final = Path(__file__).parents[2] / "tests" / "operator" / "golden" / "full.yaml"
"""The service that sets every field."""
KEY: Final = "sk-load"
"""The API key that the services accept after the change."""
PRIORITY: Final = "kvasir-e2e"
"""The name of the PriorityClass and of the RuntimeClass to which pods are changed."""


@dataclass(frozen=True)
class NotHere:
    """Why these tests do not change a field."""

    reason: str


_IMAGE: Final = "kvasir-frontend:dev"  # which each node has
_UNTIL_TERMINATED: Final = "trap 'exit 0' TERM; sleep 86400 & wait"
_POD: Final[Mapping[str, Any]] = {
    "resources.limits": {"memory": "2Gi"},
    "resources.requests": {"cpu": "50m", "memory": "128Mi"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "example.com/any", "operator": "Exists"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"team": "a"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "securityContext.readOnlyRootFilesystem": False,
    "securityContext.allowPrivilegeEscalation": False,
    "securityContext.capabilities": {"drop": ["ALL"]},
    "securityContext.runAsUser": 1000,
    "securityContext.runAsGroup": 1000,
    "podSecurityContext.fsGroup": 1000,
    "podSecurityContext.fsGroupChangePolicy": "Always",
    "podSecurityContext.runAsNonRoot": True,
    "priorityClassName": PRIORITY,
    "runtimeClassName": PRIORITY,
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "resourceClaims": NotHere("needs a driver of devices"),
    "initContainers": [{"name": "first", "image": _IMAGE, "command": ["true"]}],
    "sidecars": [{"name": "next", "image": _IMAGE, "command": ["sh", "-c", _UNTIL_TERMINATED]}],
    "env": [{"name": "GREETING", "value": "hello"}],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "labels": {"team": "a"},
    "annotations": {"example.com/note": "changed"},
}
VALUES: Final[Mapping[str, Any]] = {
    "model.servedNames": ["demo", "other"],
    "model.tokenSecret.name": "token",
    "model.tokenSecret.key": "key",
    "model.loraAdapters": [],
    **{
        f"model.cache.{name}": NotHere("is for models that are downloaded")
        for name in ("size", "retain", "credentials.name")
    },
    "engine.dataParallelSize": NotHere("is changed by the test of scaling"),
    "engine.tensorParallelSize": NotHere("is changed by the test of split engines"),
    "engine.pipelineParallelSize": NotHere("is changed by the test of split engines"),
    "engine.resourceName": NotHere("needs GPUs, which these nodes do not have"),
    "engine.maxModelLen": 512,
    "engine.maxNumSeqs": 32,
    "engine.maxNumBatchedTokens": 1024,
    "engine.kvCache.memoryUtilization": NotHere("is a GPU's"),
    "engine.kvCache.memory": "96Mi",
    "engine.image": NotHere("needs a second image of the same kind, which the nodes do not have"),
    "engine.extraArgs": ["--log-level=debug"],
    **{f"engine.pod.{name}": value for name, value in _POD.items()},
    "frontend.replicas": 2,
    "frontend.apiKeys.name": "keys",
    "frontend.adminApiKeys.name": "admin-keys",
    "frontend.drainTimeout": "30s",
    "frontend.extraArgs": ["--log-level=debug"],
    **{f"frontend.pod.{name}": value for name, value in _POD.items()},
    "autoscaling.minRanks": NotHere("is changed by the test of scaling to zero"),
    "autoscaling.maxRanks": NotHere("is changed by the test of scaling to zero"),
    "autoscaling.toZeroAfter": NotHere("is changed by the test of scaling to zero"),
    **{
        f"autoscaling.{name}": NotHere("is changed by the test of scaling by load")
        for name in (
            "targets.queueSeconds",
            "targets.ttft",
            "targets.kvCacheUtilization",
            "scaleUpAfter",
            "scaleDownAfter",
        )
    },
    "profile": NotHere("needs an operator with profiles"),
    **{
        f"expose.{name}": NotHere("needs a controller of Ingresses or Gateways")
        for name in (
            *("host", "path", "tls.secretName", "ingressClassName", "annotations"),
            *("gateway.name", "gateway.namespace", "gateway.sectionName"),
        )
    },
    "rollout.drainTimeout": "20s",
    "rollout.maxSurge": 2,
    "rollout.maxUnavailable": 0,
    "network.policy": False,
    "network.allowFrom": [{"podSelector": {}}],
    "network.allowMetricsFrom": [{"namespaceSelector": {}}],
    "frontend.image": NotHere("needs a second image of the same kind, which the nodes do not have"),
    "image": NotHere("needs one image for both kinds of pod, which is not built"),
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": [{"name": "registry"}],
    "paused": NotHere("stops every change; the operator's own tests cover it"),
}


def mutable_fields() -> list[str]:
    """Return the paths below `spec` of all mutable fields without inner fields."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    return list(_leaves(version["schema"]["openAPIV3Schema"]["properties"]["spec"], ""))


def changes() -> list[dict[str, Any]]:
    """Return patches of a spec that change all of these fields: two fields alone, the others together by part.

    Raises AssertionError if a field has no value, or a value has no field.
    """
    fields, values = mutable_fields(), all_values()
    assert set(fields) == set(values), f"without a field or without a value: {set(fields) ^ set(values)}"
    alone = ("engine.maxModelLen", "frontend.drainTimeout")
    groups: dict[str, list[str]] = {field: [field] for field in alone}
    for field in fields:
        value = values[field]
        if isinstance(value, NotHere):
            print(f"spec.{field} is not changed: it {value.reason}")
        elif field not in alone:
            first = field.split(".")[0]
            groups.setdefault(first if first in ("engine", "frontend", "network") else "others", []).append(field)
    return [_patch({field: values[field] for field in group}) for group in groups.values()]


def all_values() -> dict[str, Any]:
    """Return VALUES, completed by the example's values of the other mutable fields."""
    example = next(yaml.safe_load_all(EXAMPLE.read_text()))["spec"]
    values = dict(VALUES)
    for field in mutable_fields():
        if field not in values and (value := _find(example, field)) is not None:
            values[field] = value
    return values


def _find(spec: Any, field: str) -> Any:
    for name in field.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


def _leaves(node: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, inner in node.get("properties", {}).items():
        rules = [rule["rule"] for rule in inner.get("x-kubernetes-validations", ())]
        if "self == oldSelf" in rules:
            continue
        if "properties" in inner:
            yield from _leaves(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _patch(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested object that sets these fields."""
    spec: dict[str, Any] = {}
    for field, value in values.items():
        *outer, last = field.split(".")
        inner = spec
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return {"spec": spec}
