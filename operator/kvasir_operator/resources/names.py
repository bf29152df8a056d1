"""Names, labels and ports that the objects of one InferenceService share."""

from typing import Final, Literal

from kvasir_operator.spec import InferenceService

Component = Literal["engine", "frontend"]

HTTP_PORT: Final = 8000
"""Frontends: the OpenAI API and the probes."""
LINK_PORT: Final = 5570
"""Frontends: engines connect here."""
OPS_PORT: Final = 8081
"""Engines: probes and metrics."""

MANAGER: Final = "kvasir-operator"


def workload_name(service: InferenceService, component: Component) -> str:
    """Of the StatefulSet or Deployment, and of the headless Service in front of its pods."""
    return f"{service.name}-{component}"


def link_secret_name(service: InferenceService) -> str:
    return f"{service.name}-link"


def selector_labels(service: InferenceService, component: Component) -> dict[str, str]:
    """The labels that tell this component's pods from all others; they never change."""
    return {
        "app.kubernetes.io/name": "kvasir",
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": component,
    }


def labels(service: InferenceService, component: Component) -> dict[str, str]:
    return {**selector_labels(service, component), "app.kubernetes.io/managed-by": MANAGER}
