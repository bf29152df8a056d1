"""Run the operator's pod templates as processes: arguments stay, and a Place replaces values of Kubernetes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kvasir.config.options import ConfigError
from kvasir.local.place import Place
from kvasir.local.process_specs import Probes, engine_spec, frontend_spec, inherited_environment
from kvasir.local.supervision.process_spec import ProcessSpec
from kvasir_contract import environment
from kvasir_contract.endpoints import ProbeTiming
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE
from kvasir_operator.pod_spec import PodSpec
from kvasir_operator.resources.adapter_list import adapters_text
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.names import FETCH_CONTAINER
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

# By name of the Secret and key.
Secrets = Mapping[str, Mapping[str, str]]

# The socket is inherited, the link needs no keys, no Service sends connections after SIGTERM, KV blocks are handed
# over next to the link, and the log has the termination message.
NOT_HERE: Final = (
    environment.HOST,
    environment.PORT,
    environment.LINK_KEYS,
    environment.SHUTDOWN_DELAY,
    environment.POD_IP,
    TERMINATION_MESSAGE_VARIABLE,
)

_NO_RELEASE = Release(frontend_image="", engine_image="", version="")


def service_processes(service: InferenceService, secrets: Secrets, place: Place) -> list[ProcessSpec]:
    """Return every frontend and engine of the service. Raises ConfigError for features that only a cluster has."""
    service = _without_cluster(service)
    frontend, engine = frontend_template(service, _NO_RELEASE, ""), engine_template(service, _NO_RELEASE, "")
    keys: dict[str, str] = {}
    variables = {"apiKeys": environment.API_KEY_DIR, "adminApiKeys": environment.ADMIN_API_KEY_DIR}
    for field, name in service.frontend.key_secrets.items():
        directory = place.write_secrets(field, _secret(secrets, name, f"spec.frontend.{field}"))
        keys[variables[field]] = str(directory)
    if service.model.takes_adapters:
        directory = place.write_secrets("adapters", {environment.ADAPTERS_FILE: adapters_text(service)})
        keys[environment.LORA_MODULES_FILE] = f"{directory}/{environment.ADAPTERS_FILE}"
    return [
        *(
            _process(frontend_spec, place, number, frontend, secrets, place.frontend_env(number) | keys)
            for number in range(service.frontend.replicas)
        ),
        *(
            _process(engine_spec, place, rank, engine, secrets, place.engine_env(rank))
            for rank in range(service.engine.data_parallel_size)
        ),
    ]


def engine_options(service: InferenceService) -> list[str]:
    # Without the model.
    container = engine_template(_without_cluster(service), _NO_RELEASE, "")["spec"]["containers"][0]
    return list(container["args"][2:])


def _without_cluster(service: InferenceService) -> InferenceService:
    engine, model = replace(service.engine, nodes=1), replace(service.model, cache=None)
    return replace(service, engine=engine, model=model, expose=None)


def without_effect(service: InferenceService) -> list[str]:
    """Return the fields that are set and have no effect without a cluster."""
    set_fields = {
        "model.cache": service.model.cache,
        "engine.nodes": service.engine.nodes > 1,
        "autoscaling.toZeroAfter": service.autoscaling.to_zero_after,
        "autoscaling.targets": service.autoscaling.targets,
        "network.allowFrom": service.network.allow_from,
        "network.allowMetricsFrom": service.network.allow_metrics_from,
        "expose": service.expose,
        "profile": service.profile,
        "paused": service.paused,
        "operatorClass": service.operator_class,
        "image": service.image,
        "engine.image": service.engine.image,
        "frontend.image": service.frontend.image,
        "imagePullPolicy": service.image_pull_policy,
        "imagePullSecrets": service.image_pull_secrets,
        **{f"engine.pod.{name}": value for name, value in _cluster_fields(service.engine.pod).items()},
        **{f"frontend.pod.{name}": value for name, value in _cluster_fields(service.frontend.pod).items()},
    }
    return [f"spec.{name}" for name, value in set_fields.items() if value]


def _cluster_fields(pod: PodSpec) -> dict[str, Any]:
    return {
        "resources": pod.resources,
        "nodeSelector": pod.node_selector,
        "tolerations": pod.tolerations,
        "affinity": pod.affinity,
        "topologySpreadConstraints": pod.topology_spread_constraints,
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "schedulerName": pod.scheduler_name,
        "serviceAccountName": pod.service_account_name,
        "resourceClaims": pod.resource_claims,
        "initContainers": pod.init_containers,
        "sidecars": pod.sidecars,
        "volumes": pod.volumes,
        "volumeMounts": pod.volume_mounts,
        "labels": pod.labels,
        "annotations": pod.annotations,
        "securityContext": pod.security_context,
        "podSecurityContext": pod.pod_security_context,
    }


def _process(
    make: Callable[..., ProcessSpec],
    place: Place,
    number: int,
    template: Mapping[str, Any],
    secrets: Secrets,
    replaced: Mapping[str, str],
) -> ProcessSpec:
    container = template["spec"]["containers"][0]
    # Here the process fetches its model itself: an init container's variables have the hub's token.
    inits = template["spec"].get("initContainers", ())
    fetching = next((each for each in inits if each["name"] == FETCH_CONTAINER), container)
    return make(
        place,
        number,
        container["args"],
        inherited_environment() | _environment(fetching, secrets, replaced),
        template["spec"]["terminationGracePeriodSeconds"],
        probes=probes_of(container),
    )


def probes_of(container: Mapping[str, Any]) -> Probes:
    return Probes(
        readiness=_probe(container["readinessProbe"]),
        liveness=_probe(container["livenessProbe"]),
        startup=_probe(container["startupProbe"]) if "startupProbe" in container else None,
    )


def _probe(probe: Mapping[str, Any]) -> ProbeTiming:
    return ProbeTiming(
        probe["httpGet"]["path"], probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]
    )


def _environment(container: Mapping[str, Any], secrets: Secrets, replaced: Mapping[str, str]) -> dict[str, str]:
    # The process rejects other settings, which envFrom may bring, as in a pod.
    replaced = {**replaced, environment.MANAGED_VARIABLES: ",".join(sorted(replaced))}
    env: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        env |= _all_of(source, secrets)
    for variable in container["env"]:
        name, value = variable["name"], variable.get("value", "")
        of_the_pod = name in NOT_HERE or (name == "HOME" and value == environment.CACHE_DIRECTORY)
        if name in replaced or of_the_pod:
            continue
        if "valueFrom" in variable:
            resolved = _value_from(name, variable["valueFrom"], secrets)
            if resolved is None:
                continue
            value = resolved
        env[name] = value
    return {**env, **replaced}


def _value_from(name: str, source: Mapping[str, Any], secrets: Secrets) -> str | None:
    # None for an optional one that is missing.
    reference = source.get("secretKeyRef")
    if reference is None:
        raise ConfigError(f"the variable {name} takes its value from {', '.join(source)}: there is none here")
    if reference.get("optional") and reference["key"] not in secrets.get(reference["name"], {}):
        return None
    values = _secret(secrets, reference["name"], f"the variable {name}")
    if reference["key"] not in values:
        raise ConfigError(f"Secret {reference['name']} has no key {reference['key']}, which {name} is taken from")
    return values[reference["key"]]


def _all_of(source: Mapping[str, Any], secrets: Secrets) -> dict[str, str]:
    reference = source.get("secretRef")
    if reference is None:
        raise ConfigError(f"envFrom takes variables from {', '.join(source)}: there is none here")
    if reference.get("optional") and reference["name"] not in secrets:
        return {}
    prefix = source.get("prefix", "")
    return {prefix + key: value for key, value in _secret(secrets, reference["name"], "envFrom").items()}


def _secret(secrets: Secrets, name: str, wanted_by: str) -> Mapping[str, str]:
    if name not in secrets:
        raise ConfigError(
            f"Secret {name}, which {wanted_by} names, is not in the manifest: add it there (kind: Secret)"
        )
    return secrets[name]
