"""The InferenceService as an API resource, and the labels and annotations of the objects made for it."""

from typing import Final

GROUP: Final = "serving.kvasir.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

MANAGER: Final = "kvasir-operator"
"""Field manager, `managed-by` label and name of the operator's own objects."""

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

APP: Final = "kvasir"
"""Value of the name label on every object of a service."""
