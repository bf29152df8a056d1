"""Names, labels and annotations that the objects of one InferenceService share."""

from typing import Any, Final, Literal

from kvasir_contract.api import (
    API_VERSION,
    APP,
    COMPONENT_LABEL,
    GROUP,
    INSTANCE_LABEL,
    KIND,
    MANAGED_BY_LABEL,
    MANAGER,
    NAME_LABEL,
)
from kvasir_operator.spec import InferenceService

Component = Literal["engine", "frontend"]
Object = dict[str, Any]

LINK_KEYS_ANNOTATION: Final = f"{GROUP}/link-keys"
"""On the ServiceAccount, the name of the Secret with the link's keys. Also on pod templates, so that new keys
replace the pods."""
INPUTS_ANNOTATION: Final = f"{GROUP}/inputs"
"""On workloads, a digest of the inputs of the pod template, without the operator's release."""
RELEASE_ANNOTATION: Final = f"{GROUP}/release"
"""On workloads, the release that made the pod template. On an InferenceService, the release that it requests."""
TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"
"""On workloads, the pod template as it was applied, in JSON."""

FETCH_CONTAINER: Final = "fetch"
"""The init container of a frontend that downloads config and tokenizer with the hub's token."""
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
"""The ordinal of a pod, set by the StatefulSet's controller."""


def workload_name(service: InferenceService, component: Component) -> str:
    """Return the name of a component's workload, headless Service, disruption budget and network policy."""
    return f"{service.name}-{component}"


def selector_labels(service: InferenceService, component: Component) -> dict[str, str]:
    """Return the labels that select only this component's pods. They never change."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: service.name, COMPONENT_LABEL: component}


def labels(service: InferenceService, component: Component | Literal["link"]) -> dict[str, str]:
    """Return the labels of an object; "link" is for objects of the link between both components."""
    return {
        NAME_LABEL: APP,
        INSTANCE_LABEL: service.name,
        COMPONENT_LABEL: component,
        MANAGED_BY_LABEL: MANAGER,
    }


def metadata(service: InferenceService, name: str, component: Component | Literal["link"]) -> Object:
    """Return the metadata of an object that the service owns."""
    return {
        "name": name,
        "namespace": service.namespace,
        "labels": labels(service, component),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": service.name,
                "uid": service.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
