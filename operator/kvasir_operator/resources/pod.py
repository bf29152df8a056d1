"""What engine pods and frontend pods have in common: hardening, scratch space, link keys, the user's additions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_operator.resources.names import Component, labels, link_secret_name, selector_labels
from kvasir_operator.spec import InferenceService, Pod

Object = dict[str, Any]

CACHE_DIRECTORY: Final = "/var/cache/kvasir"
LINK_KEYS_DIRECTORY: Final = "/etc/kvasir/link"
KILL_MARGIN: Final = 15.0
"""Seconds between the end of the drain and Kubernetes' SIGKILL, to close links and exit."""


@dataclass(frozen=True)
class Images:
    """The images of a release, for services that name none."""

    frontend: str
    engine: str


@dataclass(frozen=True)
class Mount:
    """A volume of Kvasir's own and where the container sees it."""

    name: str
    path: str
    source: Object
    read_only: bool = False


def pod_template(
    service: InferenceService,
    component: Component,
    pod: Pod,
    container: Object,
    mounts: Sequence[Mount],
    grace: float,
) -> Object:
    """A pod of one container: `container` completed by what every container has."""
    mounts = [*mounts, _link_keys(service, component), *_scratch()]
    spec = {
        "containers": [_container(service, component, pod, container, mounts)],
        "volumes": [{"name": mount.name, **mount.source} for mount in mounts] + [dict(v) for v in pod.volumes],
        "terminationGracePeriodSeconds": math.ceil(grace),
        # A Service called `kvasir` would inject KVASIR_PORT, which is one of our options.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "serviceAccountName": service.name,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "imagePullSecrets": [{"name": name} for name in service.image_pull_secrets],
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [dict(toleration) for toleration in pod.tolerations],
        "affinity": dict(pod.affinity),
        "topologySpreadConstraints": _spread(service, component, pod),
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
    }
    metadata = {"labels": {**pod.labels, **labels(service, component)}, "annotations": dict(pod.annotations)}
    return {"metadata": without_empty(metadata), "spec": without_empty(spec)}


def option_args(**options: str | int | float | Sequence[str] | None) -> list[str]:
    """Options as arguments: max_num_seqs=8 → --max-num-seqs 8; None is left out."""
    args: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        values = [str(value)] if isinstance(value, str | int | float) else list(value)
        args += ["--" + name.replace("_", "-"), *values]
    return args


def seconds(duration: float) -> str:
    """The duration as an option takes it: 300s, 0.5s."""
    return f"{duration:.3f}".rstrip("0").rstrip(".") + "s"


def http_probe(path: str, port: str, *, period: int, timeout: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def without_empty(fields: Mapping[str, Any]) -> Object:
    """Without what is None, {} or []: server-side apply would take ownership of an empty field."""
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}


def _container(
    service: InferenceService, component: Component, pod: Pod, container: Object, mounts: Sequence[Mount]
) -> Object:
    own_env = [
        *container["env"],
        {"name": "KVASIR_LINK_KEYS", "value": LINK_KEYS_DIRECTORY},
        {"name": "KVASIR_SERVICE_UID", "value": service.uid},
        # Not the root file system, which is read-only: caches of hubs and compilers go below HOME.
        {"name": "HOME", "value": CACHE_DIRECTORY},
        *_token(service),
    ]
    env = {variable["name"]: dict(variable) for variable in (*own_env, *pod.env)}
    return without_empty(
        {
            "name": component,
            "imagePullPolicy": service.image_pull_policy,
            "command": ["kvasir"],
            **container,
            "env": list(env.values()),
            "envFrom": [dict(source) for source in pod.env_from],
            "volumeMounts": [_volume_mount(mount) for mount in mounts] + [dict(m) for m in pod.volume_mounts],
            # A container that fails leaves its last lines in the pod's status: the operator reads the cause there.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    )


def _token(service: InferenceService) -> list[Object]:
    token = service.model.token_secret
    if token is None:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}}]


def _link_keys(service: InferenceService, component: Component) -> Mount:
    """This side's secret key and the other side's public one, of the two pairs in the link's Secret."""
    keys = ("server.secret", "client.public") if component == "frontend" else ("client.secret", "server.public")
    items = [{"key": key, "path": key} for key in keys]
    source = {"secret": {"name": link_secret_name(service), "items": items}}
    return Mount("kvasir-link", LINK_KEYS_DIRECTORY, {"projected": {"sources": [source]}}, read_only=True)


def _scratch() -> list[Mount]:
    return [
        Mount("kvasir-tmp", "/tmp", {"emptyDir": {}}),
        Mount("kvasir-cache", CACHE_DIRECTORY, {"emptyDir": {}}),
    ]


def _volume_mount(mount: Mount) -> Object:
    entry: Object = {"name": mount.name, "mountPath": mount.path}
    if mount.read_only:
        entry["readOnly"] = True
    return entry


def _spread(service: InferenceService, component: Component, pod: Pod) -> list[Object]:
    counted = {"labelSelector": {"matchLabels": selector_labels(service, component)}}
    return [{**counted, **constraint} for constraint in pod.topology_spread_constraints]
