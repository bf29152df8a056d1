"""The identity of the pods: a ServiceAccount without a token, and the keys of the link."""

import base64
from collections.abc import Mapping

from kvasir_contract.environment import KEY_FILES
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION, Object, metadata
from kvasir_operator.spec import InferenceService


def service_account(service: InferenceService, link_secret: str) -> Object:
    # It records the Secret's name, because it is written before the pods that mount the keys.
    annotations = {LINK_KEYS_ANNOTATION: link_secret} if link_secret else {}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(service, service.name, "link", annotations),
        "automountServiceAccountToken": False,
    }


def link_secret(service: InferenceService, name: str, keys: Mapping[str, str]) -> Object:
    # New keys get a new name: a kubelet that caches an immutable Secret never mounts old ones.
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(service, name, "link"),
        "type": "Opaque",
        "immutable": True,
        "data": {file: base64.b64encode(keys[file].encode()).decode() for file in KEY_FILES},
    }
