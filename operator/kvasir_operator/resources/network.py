"""The Services of an InferenceService: one for clients, and a headless one per component."""

from typing import Final

from kvasir_contract.endpoints import (
    HTTP_PORT,
    HTTP_PORT_NAME,
    LINK_PORT,
    LINK_PORT_NAME,
    OPS_PORT,
    OPS_PORT_NAME,
)
from kvasir_operator.resources.names import Component, Object, metadata, selector_labels, workload_name
from kvasir_operator.spec import InferenceService

CLIENT_PORT: Final = 80  # with TLS too: clients keep their port when a service gets a certificate


def http_service(service: InferenceService) -> Object:
    port = {
        "name": HTTP_PORT_NAME,
        "port": CLIENT_PORT,
        "targetPort": HTTP_PORT_NAME,
        "appProtocol": "https" if service.frontend.serves_https else "http",
    }
    return _service(service, "frontend", service.name, {"type": "ClusterIP", "ports": [port]})


def frontend_service(service: InferenceService) -> Object:
    # a frontend becomes ready when an engine has found it here
    ports = [
        {"name": LINK_PORT_NAME, "port": LINK_PORT},
        {"name": HTTP_PORT_NAME, "port": HTTP_PORT},
        {"name": OPS_PORT_NAME, "port": OPS_PORT},
    ]
    return _headless(service, "frontend", ports)


def engine_service(service: InferenceService) -> Object:
    # with loading ranks
    return _headless(service, "engine", [{"name": OPS_PORT_NAME, "port": OPS_PORT}])


def url(service: InferenceService) -> str:
    host = f"{service.name}.{service.namespace}.svc"
    return f"https://{host}:{CLIENT_PORT}/v1" if service.frontend.serves_https else f"http://{host}/v1"


def _headless(service: InferenceService, component: Component, ports: list[Object]) -> Object:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": ports}
    return _service(service, component, workload_name(service, component), spec)


def _service(service: InferenceService, component: Component, name: str, spec: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service, name, component),
        "spec": {**spec, "selector": selector_labels(service, component)},
    }
