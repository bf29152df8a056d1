"""The field `expose` of an InferenceService."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CERTIFICATE: Final = "expose.tls.secretName"


@dataclass(frozen=True)
class GatewayRef:
    name: str
    namespace: str
    section_name: str | None  # the listener; None for all

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ExposeSpec:
    host: str
    path: str  # "/" or a prefix without a slash at its end
    tls: bool
    tls_secret: str | None  # of an Ingress; None for the controller's own certificate
    ingress_class: str | None  # None for the cluster's default class
    gateway: GatewayRef | None  # None for an Ingress
    annotations: Mapping[str, str]

    @property
    def root_path(self) -> str | None:
        return None if self.path == "/" else self.path


def parse_expose(fields: Mapping[str, Any] | None, namespace: str) -> ExposeSpec | None:
    if fields is None:
        return None
    tls, gateway = fields.get("tls"), fields.get("gateway")
    return ExposeSpec(
        host=fields["host"],
        path=fields["path"],
        tls=tls is not None,
        tls_secret=(tls or {}).get("secretName"),
        ingress_class=fields.get("ingressClassName"),
        gateway=gateway
        and GatewayRef(gateway["name"], gateway.get("namespace", namespace), gateway.get("sectionName")),
        annotations=fields.get("annotations", {}),
    )
