"""The Services of an InferenceService: the one that clients use, and a headless one per kind of pod."""

from kvasir_operator.resources.names import (
    HTTP_PORT,
    LINK_PORT,
    OPS_PORT,
    Component,
    labels,
    selector_labels,
    workload_name,
)
from kvasir_operator.resources.pod import Object
from kvasir_operator.spec import InferenceService


def http_service(service: InferenceService) -> Object:
    """Where clients reach the OpenAI API, on port 80."""
    port = {"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}
    return _service(service, "frontend", service.name, {"type": "ClusterIP", "ports": [port]})


def frontend_service(service: InferenceService) -> Object:
    """The addresses that engines connect to: of every frontend, ready or not, because a frontend gets ready by an
    engine's connecting."""
    ports = [{"name": "link", "port": LINK_PORT}, {"name": "http", "port": HTTP_PORT}]
    return _headless(service, "frontend", ports, publish_not_ready=True)


def engine_service(service: InferenceService) -> Object:
    """Gives each rank a name, and monitoring an address to scrape, while it loads as well."""
    return _headless(service, "engine", [{"name": "ops", "port": OPS_PORT}], publish_not_ready=True)


def url(service: InferenceService) -> str:
    """The base URL that clients in the cluster use."""
    return f"http://{service.name}.{service.namespace}.svc/v1"


def _headless(
    service: InferenceService, component: Component, ports: list[Object], publish_not_ready: bool
) -> Object:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": publish_not_ready, "ports": ports}
    return _service(service, component, workload_name(service, component), spec)


def _service(service: InferenceService, component: Component, name: str, spec: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": service.namespace, "labels": labels(service, component)},
        "spec": {**spec, "selector": selector_labels(service, component)},
    }
