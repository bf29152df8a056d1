"""The Ingress or HTTPRoute that exposes an InferenceService outside the cluster."""

from typing import Final

from kvasir_operator.cluster.kinds import HTTP_ROUTE, INGRESS, Kind
from kvasir_operator.expose_spec import ExposeSpec, GatewayRef
from kvasir_operator.resources.names import Object, metadata
from kvasir_operator.resources.network import CLIENT_PORT
from kvasir_operator.resources.pod import without_empty
from kvasir_operator.spec import InferenceService

# Without data: a request may wait in the queue, or for an engine of a service at zero.
MAX_SILENT_SECONDS: Final = 3600

# Each controller reads its own annotations. A size of 0 means no limit: frontends have --max-request-bytes.
_ANNOTATIONS: Final = {
    "nginx.ingress.kubernetes.io/proxy-body-size": "0",
    "nginx.ingress.kubernetes.io/proxy-buffering": "off",
    "nginx.ingress.kubernetes.io/proxy-read-timeout": f"{MAX_SILENT_SECONDS}",
    "nginx.ingress.kubernetes.io/proxy-send-timeout": f"{MAX_SILENT_SECONDS}",
    "nginx.org/client-max-body-size": "0",
    "nginx.org/proxy-buffering": "False",
    "nginx.org/proxy-read-timeout": f"{MAX_SILENT_SECONDS}s",
    "nginx.org/proxy-send-timeout": f"{MAX_SILENT_SECONDS}s",
    "haproxy.org/timeout-server": f"{MAX_SILENT_SECONDS}s",
    "haproxy-ingress.github.io/timeout-server": f"{MAX_SILENT_SECONDS}s",
    "projectcontour.io/response-timeout": "infinity",
}
# for frontends with TLS of their own
_TLS_ANNOTATIONS: Final = {
    "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
    "haproxy.org/server-ssl": "true",
    "haproxy-ingress.github.io/backend-protocol": "h1-ssl",
}


def exposure(service: InferenceService) -> Object | None:
    if service.expose is None:
        return None
    gateway = service.expose.gateway
    if gateway is None:
        return _ingress(service, service.expose)
    return _http_route(service, service.expose, gateway)


def exposure_key(service: InferenceService, expose: ExposeSpec) -> tuple[Kind, str]:
    return INGRESS if expose.gateway is None else HTTP_ROUTE, service.name


def outside_url(expose: ExposeSpec) -> str:
    return f"{'https' if expose.tls else 'http'}://{expose.host}{expose.root_path or ''}/v1"


def _ingress(service: InferenceService, expose: ExposeSpec) -> Object:
    backend = {"service": {"name": service.name, "port": {"number": CLIENT_PORT}}}
    path = {"path": expose.path, "pathType": "Prefix", "backend": backend}
    tls = without_empty({"hosts": [expose.host], "secretName": expose.tls_secret})
    annotations = {**_ANNOTATIONS, **(_TLS_ANNOTATIONS if service.frontend.serves_https else {})}
    return {
        "apiVersion": INGRESS.api_version,
        "kind": INGRESS.kind,
        "metadata": metadata(service, service.name, "frontend", {**annotations, **expose.annotations}),
        "spec": without_empty(
            {
                "ingressClassName": expose.ingress_class,
                "tls": [tls] if expose.tls else [],
                "rules": [{"host": expose.host, "http": {"paths": [path]}}],
            }
        ),
    }


def _http_route(service: InferenceService, expose: ExposeSpec, gateway: GatewayRef) -> Object:
    parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": gateway.section_name}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": expose.path}}],
        "backendRefs": [{"name": service.name, "port": CLIENT_PORT}],
        # 0s disables them; a Gateway's default, such as 15 s of Envoy, would end streams
        "timeouts": {"request": "0s", "backendRequest": "0s"},
    }
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.kind,
        "metadata": metadata(service, service.name, "frontend", expose.annotations),
        "spec": {"parentRefs": [without_empty(parent)], "hostnames": [expose.host], "rules": [rule]},
    }
