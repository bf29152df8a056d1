"""The frontends of an InferenceService: a Deployment of API servers, which need no GPU."""

from kvasir_contract import environment
from kvasir_contract.endpoints import (
    ANY_HOST,
    FRONTEND_STARTUP,
    HTTP_PORT,
    HTTP_PORT_NAME,
    KILL_MARGIN_SECONDS,
    LINK_PORT,
    LINK_PORT_NAME,
    LIVENESS,
    OPS_PORT,
    OPS_PORT_NAME,
    READINESS,
    SHUTDOWN_DELAY_SECONDS,
)
from kvasir_contract.units import format_duration
from kvasir_operator.resources.adapter_list import adapters_name
from kvasir_operator.resources.model_volume import model_mounts, mounted_source
from kvasir_operator.resources.names import (
    FETCH_CONTAINER,
    Object,
    metadata,
    selector_labels,
    workload_name,
)
from kvasir_operator.resources.pinning import workload_annotations
from kvasir_operator.resources.pod import Mount, http_probe, option_args, pod_template, with_default_requests
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService


def frontend_deployment(service: InferenceService, release: Release, link_secret: str) -> Object:
    template = frontend_template(service, release, link_secret)
    annotations = workload_annotations(service, "frontend", release, link_secret, template)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(service, workload_name(service, "frontend"), "frontend", annotations),
        "spec": {
            "replicas": service.frontend.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector_labels(service, "frontend")},
            "template": template,
        },
    }


def frontend_template(service: InferenceService, release: Release, link_secret: str) -> Object:
    container = {
        "image": service.frontend.image or service.image or release.frontend_image,
        "args": ["frontend", mounted_source(service), *_options(service), *service.frontend.extra_args],
        "env": _environment(service),
        "ports": [
            {"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT},
            {"name": LINK_PORT_NAME, "containerPort": LINK_PORT},
            {"name": OPS_PORT_NAME, "containerPort": OPS_PORT},
        ],
        "resources": with_default_requests(service.frontend.pod.resources, cpu="100m", memory="256Mi"),
        "startupProbe": http_probe(FRONTEND_STARTUP),
        "livenessProbe": http_probe(LIVENESS),
        "readinessProbe": http_probe(READINESS),
    }
    return pod_template(
        service,
        "frontend",
        service.frontend.pod,
        container,
        fs_group=release.fs_group,
        link_secret=link_secret,
        mounts=[*_key_mounts(service), *_adapters_mount(service), *model_mounts(service)],
        fetch=_fetching(container) if _needs_token_once(service) else None,
        grace=SHUTDOWN_DELAY_SECONDS + service.frontend.drain_timeout + KILL_MARGIN_SECONDS,
    )


def _needs_token_once(service: InferenceService) -> bool:
    # an adapter may be added later, so the frontend itself needs the token
    model = service.model
    return model.token_secret is not None and not model.takes_adapters and not model.is_on_volume


def _fetching(serving: Object) -> Object:
    # Clients reach only the other container, which has no token.
    kept = {name: serving[name] for name in ("image", "env", "resources")}
    return {**kept, "name": FETCH_CONTAINER, "args": [*serving["args"], "--fetch-only"]}


def _options(service: InferenceService) -> list[str]:
    return option_args(
        served_model_name=service.model.served_names,
        task=None if service.model.task == "auto" else service.model.task,
        quantization=None if service.model.quantization == "auto" else service.model.quantization,
        max_model_len=service.engine.max_model_len,
        max_client_share=service.frontend.max_client_share,
        max_parsed_bytes=service.frontend.max_parsed_bytes,
        tool_call_parser=service.frontend.tool_call_parser,
        reasoning_parser=service.frontend.reasoning_parser,
        root_path=service.expose.root_path if service.expose is not None else None,
        drain_timeout=format_duration(service.frontend.drain_timeout),
    )


def _environment(service: InferenceService) -> list[Object]:
    variables = {
        environment.LINK: f"tcp://{ANY_HOST}:{LINK_PORT}",
        environment.HOST: ANY_HOST,
        environment.PORT: str(HTTP_PORT),
        environment.OPS_HOST: ANY_HOST,
        environment.OPS_PORT: str(OPS_PORT),
        environment.SHUTDOWN_DELAY: format_duration(SHUTDOWN_DELAY_SECONDS),
    }
    if service.frontend.api_keys:
        variables[environment.API_KEY_DIR] = environment.API_KEYS_DIRECTORY
    if service.model.takes_adapters:
        variables[environment.LORA_MODULES_FILE] = f"{environment.ADAPTERS_DIRECTORY}/{environment.ADAPTERS_FILE}"
    if service.frontend.admin_api_keys:
        variables[environment.ADMIN_API_KEY_DIR] = environment.ADMIN_API_KEYS_DIRECTORY
    return [{"name": name, "value": value} for name, value in variables.items()]


def _key_mounts(service: InferenceService) -> list[Mount]:
    secrets = (
        ("kvasir-api-keys", environment.API_KEYS_DIRECTORY, service.frontend.api_keys),
        ("kvasir-admin-api-keys", environment.ADMIN_API_KEYS_DIRECTORY, service.frontend.admin_api_keys),
    )
    return [
        Mount(name, directory, {"secret": {"secretName": secret}}, read_only=True)
        for name, directory, secret in secrets
        if secret is not None
    ]


def _adapters_mount(service: InferenceService) -> list[Mount]:
    if not service.model.takes_adapters:
        return []
    source = {"configMap": {"name": adapters_name(service)}}
    return [Mount("kvasir-adapters", environment.ADAPTERS_DIRECTORY, source, read_only=True)]
