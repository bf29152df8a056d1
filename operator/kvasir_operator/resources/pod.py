"""The common parts of engine and frontend pods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract import environment
from kvasir_contract.endpoints import OPS_PORT_NAME, ProbeTiming
from kvasir_contract.failure import TERMINATION_MESSAGE_PATH, TERMINATION_MESSAGE_VARIABLE
from kvasir_operator.pod_spec import PodSpec
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION, Component, Object, labels, selector_labels
from kvasir_operator.spec import InferenceService

LOST_NODE_SECONDS: Final = 30  # until pods of a lost node are replaced
_LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# set by the workload's controller
_REVISION_LABELS: Final[Mapping[Component, str]] = {
    "engine": "controller-revision-hash",
    "frontend": "pod-template-hash",
}
_NVIDIA: Final = "nvidia.com/"
_NVIDIA_TAINT: Final = "nvidia.com/gpu"


@dataclass(frozen=True)
class Mount:
    name: str
    path: str
    source: Object
    read_only: bool = False


def pod_template(
    service: InferenceService,
    component: Component,
    pod: PodSpec,
    container: Object,
    *,
    fs_group: int | None,
    link_secret: str,
    mounts: Sequence[Mount],
    grace: float,
    fetch: Object | None = None,
) -> Object:
    """Return a pod template. With an init container `fetch`, only that one gets the token."""
    links = [_link_keys(link_secret, component)] if component != "model" else []
    mounts = [*mounts, *links, *_scratch()]
    pull_secrets = (*service.image_pull_secrets, *service.default_pull_secrets)
    token = _token(service, component)
    before = [] if fetch is None else [_container(service, component, pod, fetch, _scratch(), token)]
    spec = {
        "initContainers": [*map(_added, pod.init_containers), *before],
        "containers": [
            _container(service, component, pod, container, mounts, _OFFLINE if before else token, _claims(pod)),
            *map(_added, pod.sidecars),
        ],
        "volumes": [{"name": mount.name, **mount.source} for mount in mounts] + [dict(v) for v in pod.volumes],
        "terminationGracePeriodSeconds": math.ceil(grace),
        # A Service called `kvasir` would inject KVASIR_PORT, which is an option.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "serviceAccountName": pod.service_account_name or service.name,
        "securityContext": _pod_security(pod, fs_group),
        "imagePullSecrets": [{"name": name} for name in dict.fromkeys(pull_secrets)],
        "nodeSelector": dict(pod.node_selector),
        # the Job of a cache may have to run on an engine's node, which the volume is bound to
        "tolerations": _tolerations(pod, service.engine.resource_name if component != "frontend" else ""),
        "affinity": dict(pod.affinity),
        "topologySpreadConstraints": _spread(service, component, pod),
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "schedulerName": pod.scheduler_name,
        "resourceClaims": [dict(claim) for claim in pod.resource_claims],
    }
    metadata = {
        "labels": {**service.labels, **pod.labels, **labels(service, component)},
        "annotations": {**service.annotations, **pod.annotations, **_recorded(links, link_secret)},
    }
    return {"metadata": without_empty(metadata), "spec": without_empty(spec)}


def _recorded(links: Sequence[Mount], link_secret: str) -> Mapping[str, str]:
    return {LINK_KEYS_ANNOTATION: link_secret} if links else {}


def option_args(**options: str | int | float | Sequence[str] | None) -> list[str]:
    """Return arguments: max_num_seqs=8 becomes --max-num-seqs 8. None is omitted."""
    args: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        values = [str(value)] if isinstance(value, str | int | float) else list(value)
        args += ["--" + name.replace("_", "-"), *values]
    return args


def with_default_requests(resources: Mapping[str, Any], **defaults: str) -> Object:
    # Kubernetes adds the limit as request, and rejects a request above it
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    added = {name: amount for name, amount in defaults.items() if name not in limits}
    return {**resources, "requests": {**added, **requests}}


def http_probe(timing: ProbeTiming) -> Object:
    return {
        "httpGet": {"path": timing.path, "port": OPS_PORT_NAME},
        "periodSeconds": timing.period,
        "timeoutSeconds": timing.timeout,
        "failureThreshold": timing.failures,
    }


def without_empty(fields: Mapping[str, Any]) -> Object:
    # server-side apply would own empty fields
    return {name: value for name, value in fields.items() if value is not None and value not in ({}, [])}


def _container(
    service: InferenceService,
    component: Component,
    pod: PodSpec,
    container: Object,
    mounts: Sequence[Mount],
    hub: Sequence[Object],
    claims: Sequence[Object] = (),
) -> Object:
    resources = {kind: dict(amounts) for kind, amounts in container["resources"].items() if amounts}
    return without_empty(
        {
            "name": component,
            "imagePullPolicy": service.image_pull_policy,
            "command": ["kvasir"],
            **container,
            "resources": {**resources, "claims": list(claims)} if claims else resources,
            "env": _environment(service, component, pod, container["env"], hub),
            "envFrom": [dict(source) for source in pod.env_from],
            "volumeMounts": [_volume_mount(mount) for mount in mounts] + [dict(m) for m in pod.volume_mounts],
            # for a process that crashes before it writes its message
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": _container_security(pod, _device(service, component)),
        }
    )


def _claims(pod: PodSpec) -> list[Object]:
    return [{"name": claim["name"]} for claim in pod.resource_claims]


def _added(container: Mapping[str, Any]) -> Object:
    # of the user, who may loosen what the standard "restricted" asks of each container
    user = container.get("securityContext") or {}
    if not isinstance(user, Mapping):
        return dict(container)  # Kubernetes rejects it when it creates the pods
    ours = {**_no_escalation(user), "capabilities": {"drop": ["ALL"]}}
    return {**container, "securityContext": {**ours, **user}}


def _no_escalation(user: Mapping[str, Any]) -> Object:
    capabilities = user.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, Mapping) else None
    if user.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added or ()):
        return {}  # these escalate, and Kubernetes rejects both at one time
    return {"allowPrivilegeEscalation": False}


def _device(service: InferenceService, component: Component) -> str:
    return service.engine.resource_name if component == "engine" else ""


def _container_security(pod: PodSpec, device: str) -> Object:
    user = dict(pod.security_context)
    return {
        **_no_escalation(user),
        # NVIDIA's CDI hook writes to the root file system, or fails the container's creation
        "readOnlyRootFilesystem": not device,
        **user,
        "capabilities": {"drop": ["ALL"], **user.get("capabilities", {})},
    }


def _pod_security(pod: PodSpec, fs_group: int | None) -> Object:
    return without_empty(
        {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            "fsGroup": fs_group,
            "fsGroupChangePolicy": "OnRootMismatch",  # Always changes every file at each start
            **pod.pod_security_context,
        }
    )


def _environment(
    service: InferenceService,
    component: Component,
    pod: PodSpec,
    of_component: Sequence[Object],
    hub: Sequence[Object],
) -> list[Object]:
    link: list[Object] = [
        {"name": environment.LINK_KEYS, "value": environment.LINK_KEYS_DIRECTORY},
        {"name": environment.SERVICE_UID, "value": service.uid},
    ]
    kvasir = [
        *of_component,
        *(link if component != "model" else ()),
        {"name": TERMINATION_MESSAGE_VARIABLE, "value": TERMINATION_MESSAGE_PATH},
    ]
    managed = ",".join(sorted(variable["name"] for variable in kvasir))
    variables = [
        *kvasir,
        {"name": environment.MANAGED_VARIABLES, "value": managed},
        # The root file system is read-only, so caches are below HOME.
        {"name": "HOME", "value": environment.CACHE_DIRECTORY},
        *hub,
        *pod.env,
    ]
    return list({variable["name"]: dict(variable) for variable in variables}.values())


_OFFLINE: Final[Sequence[Object]] = ({"name": "HF_HUB_OFFLINE", "value": "1"},)


def _token(service: InferenceService, component: Component) -> list[Object]:
    model, token = service.model, service.model.token_secret
    downloads = component == "model" or not model.is_on_volume or model.takes_adapters
    if token is None or not downloads:
        return []
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}}]


def _link_keys(secret: str, component: Component) -> Mount:
    # own secret key, other side's public key
    files = environment.FRONTEND_KEY_FILES if component == "frontend" else environment.ENGINE_KEY_FILES
    source = {"secretName": secret, "items": [{"key": file, "path": file} for file in files]}
    return Mount("kvasir-link", environment.LINK_KEYS_DIRECTORY, {"secret": source}, read_only=True)


def _scratch() -> list[Mount]:
    return [
        Mount("kvasir-tmp", environment.SCRATCH_DIRECTORY, {"emptyDir": {}}),
        Mount("kvasir-cache", environment.CACHE_DIRECTORY, {"emptyDir": {}}),
    ]


def _volume_mount(mount: Mount) -> Object:
    entry: Object = {"name": mount.name, "mountPath": mount.path}
    if mount.read_only:
        entry["readOnly"] = True
    return entry


def _tolerations(pod: PodSpec, device: str) -> list[Object]:
    # Our tolerations of lost nodes and GPU nodes, unless the user's are about these taints.
    theirs = [dict(toleration) for toleration in pod.tolerations]
    lost: list[Object] = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in _LOST_NODE_TAINTS
    ]
    # Nodes with parts of GPUs (nvidia.com/mig-1g.10gb) have the taint of whole ones.
    keys = [device, *([_NVIDIA_TAINT] if device.startswith(_NVIDIA) else [])] if device else []
    reserved: list[Object] = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in dict.fromkeys(keys)
    ]
    ours = [ours for ours in (*lost, *reserved) if not any(_is_about(toleration, ours) for toleration in theirs)]
    return [*ours, *theirs]


def _is_about(toleration: Object, ours: Object) -> bool:
    # without key or effect: all
    return all(toleration.get(field) in (None, "", ours[field]) for field in ("key", "effect"))


def _spread(service: InferenceService, component: Component, pod: PodSpec) -> list[Object]:
    if component not in _REVISION_LABELS:
        return []
    # Over nodes, so that a lost node is not an outage; per revision, so that a roll-out's pods spread too.
    counted = {"labelSelector": {"matchLabels": selector_labels(service, component)}}
    if pod.topology_spread_constraints:
        return [{**counted, **constraint} for constraint in pod.topology_spread_constraints]
    if "podAffinity" in pod.affinity or "podAntiAffinity" in pod.affinity:
        return []
    over_nodes = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "matchLabelKeys": [_REVISION_LABELS[component]],
    }
    return [{**counted, **over_nodes}]
