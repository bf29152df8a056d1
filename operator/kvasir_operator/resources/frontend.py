"""The frontends of an InferenceService: a Deployment of API servers, which need no GPU."""

from typing import Final

from kvasir_operator.resources.names import (
    HTTP_PORT,
    LINK_PORT,
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
from kvasir_operator.spec import InferenceService

SHUTDOWN_DELAY: Final = 5.0
"""Seconds that a frontend goes on accepting after SIGTERM, until no Service sends it new connections."""
API_KEYS_DIRECTORY: Final = "/etc/kvasir/api-keys"


def frontend_deployment(service: InferenceService, images: Images) -> Object:
    name = workload_name(service, "frontend")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": service.namespace, "labels": labels(service, "frontend")},
        "spec": {
            "replicas": service.frontend.replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector_labels(service, "frontend")},
            "template": frontend_template(service, images),
        },
    }


def frontend_template(service: InferenceService, images: Images) -> Object:
    container = {
        "image": service.image or images.frontend,
        "args": ["frontend", service.model.source, *_options(service), *service.frontend.extra_args],
        "env": _environment(service),
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT},
            {"name": "link", "containerPort": LINK_PORT},
        ],
        "resources": {kind: dict(amounts) for kind, amounts in service.frontend.pod.resources.items()},
        # It may have to fetch config and tokenizer from a hub first.
        "startupProbe": http_probe("/health/live", "http", period=2, timeout=5, failures=300),
        "livenessProbe": http_probe("/health/live", "http", period=10, timeout=5, failures=3),
        "readinessProbe": http_probe("/health/ready", "http", period=5, timeout=2, failures=2),
    }
    return pod_template(
        service,
        "frontend",
        service.frontend.pod,
        container,
        mounts=_api_keys(service),
        grace=SHUTDOWN_DELAY + service.frontend.drain_timeout + KILL_MARGIN,
    )


def _options(service: InferenceService) -> list[str]:
    return option_args(
        served_model_name=service.model.served_names,
        max_model_len=service.engine.max_model_len,
        drain_timeout=seconds(service.frontend.drain_timeout),
    )


def _environment(service: InferenceService) -> list[Object]:
    environment = {
        "KVASIR_LINK": f"tcp://0.0.0.0:{LINK_PORT}",
        "KVASIR_HOST": "0.0.0.0",
        "KVASIR_PORT": str(HTTP_PORT),
        "KVASIR_SHUTDOWN_DELAY": seconds(SHUTDOWN_DELAY),
    }
    if service.frontend.api_keys:
        environment["KVASIR_API_KEY_DIR"] = API_KEYS_DIRECTORY
    return [{"name": name, "value": value} for name, value in environment.items()]


def _api_keys(service: InferenceService) -> list[Mount]:
    if service.frontend.api_keys is None:
        return []
    source = {"secret": {"secretName": service.frontend.api_keys}}
    return [Mount("kvasir-api-keys", API_KEYS_DIRECTORY, source, read_only=True)]
