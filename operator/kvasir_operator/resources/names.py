"""Names, labels and annotations that the objects of one InferenceService share."""

from collections.abc import Mapping
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

Component = Literal["engine", "frontend", "model"]
Object = dict[str, Any]

# name of the Secret; on pod templates, so that new keys replace the pods
LINK_KEYS_ANNOTATION: Final = f"{GROUP}/link-keys"
INPUTS_ANNOTATION: Final = f"{GROUP}/inputs"  # digest of the template's inputs, without the release
RELEASE_ANNOTATION: Final = f"{GROUP}/release"  # of the template; on an InferenceService, the requested release
FILLED_ANNOTATION: Final = f"{GROUP}/filled"  # of a cache's claim: the directory whose download is complete
TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"  # as it was applied, in JSON
RANKS_ANNOTATION: Final = f"{GROUP}/ranks"  # on a StatefulSet: the number of engines that the load needs

FETCH_CONTAINER: Final = "fetch"  # the init container with the hub's token
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"  # the ordinal, set by the StatefulSet's controller


def workload_name(service: InferenceService, component: Component) -> str:
    """Return the name of a component's workload, headless Service, budget and network policy."""
    return f"{service.name}-{component}"


def selector_labels(service: InferenceService, component: Component) -> dict[str, str]:
    # These never change: selectors are immutable.
    return {NAME_LABEL: APP, INSTANCE_LABEL: service.name, COMPONENT_LABEL: component}


def labels(service: InferenceService, component: Component | Literal["link"]) -> dict[str, str]:
    """Return the labels of an object; "link" is for objects of both components."""
    return {
        NAME_LABEL: APP,
        INSTANCE_LABEL: service.name,
        COMPONENT_LABEL: component,
        MANAGED_BY_LABEL: MANAGER,
    }


def metadata(
    service: InferenceService,
    name: str,
    component: Component | Literal["link"],
    annotations: Mapping[str, str] | None = None,
) -> Object:
    annotations = {**service.annotations, **(annotations or {})}
    fields = {
        "name": name,
        "namespace": service.namespace,
        "labels": {**service.labels, **labels(service, component)},
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
    return {**fields, "annotations": annotations} if annotations else fields
