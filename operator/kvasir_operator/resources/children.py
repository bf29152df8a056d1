"""Everything that an InferenceService is made of in a cluster, and that it owns there: the desired state."""

from collections.abc import Mapping
from typing import Final

from kvasir_operator.resources.engine import engine_stateful_set
from kvasir_operator.resources.frontend import frontend_deployment
from kvasir_operator.resources.names import MANAGER
from kvasir_operator.resources.network import engine_service, frontend_service, http_service
from kvasir_operator.resources.pod import Images, Object
from kvasir_operator.resources.security import link_digest, link_secret, service_account
from kvasir_operator.spec import InferenceService

LINK_KEYS_ANNOTATION: Final = "serving.kvasir.dev/link-keys"
"""Of pod templates: the digest of the link's keys, so that new keys make new pods."""


def children(service: InferenceService, images: Images, link_keys: Mapping[str, str] | None) -> list[Object]:
    """In the order in which they are to be applied. `link_keys`: None where their Secret's name is taken."""
    workloads = [frontend_deployment(service, images), engine_stateful_set(service, images)]
    secrets = []
    if link_keys is not None:
        secrets = [link_secret(service, link_keys)]
        for workload in workloads:
            annotations = workload["spec"]["template"]["metadata"].setdefault("annotations", {})
            annotations[LINK_KEYS_ANNOTATION] = link_digest(link_keys)
    objects = [
        service_account(service),
        *secrets,
        http_service(service),
        frontend_service(service),
        engine_service(service),
        *workloads,
    ]
    for resource in objects:
        resource["metadata"]["ownerReferences"] = [_owner(service)]
    return objects


def children_selector(name: str) -> str:
    """Selects the children and the pods of the InferenceService of this name, in its namespace."""
    return f"app.kubernetes.io/instance={name},app.kubernetes.io/managed-by={MANAGER}"


def _owner(service: InferenceService) -> Object:
    return {
        "apiVersion": "serving.kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
