"""The InferenceService as an API resource, with the labels and annotations of its objects."""

from typing import Final

GROUP: Final = "serving.kvasir.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

MANAGER: Final = "kvasir-operator"  # field manager, `managed-by` label and object name

NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

APP: Final = "kvasir"
