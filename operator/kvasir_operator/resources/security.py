"""Who the pods are, and how they know each other: the ServiceAccount without a token, and the link's keys."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

from kvasir_operator.resources.names import MANAGER, link_secret_name
from kvasir_operator.resources.pod import Object
from kvasir_operator.spec import InferenceService

SERVER_SECRET: Final = "server.secret"
SERVER_PUBLIC: Final = "server.public"
CLIENT_SECRET: Final = "client.secret"
CLIENT_PUBLIC: Final = "client.public"
KEY_FILES: Final = (SERVER_SECRET, SERVER_PUBLIC, CLIENT_SECRET, CLIENT_PUBLIC)
"""Two CURVE key pairs, as the processes look for them in a directory: frontends are the servers."""


def service_account(service: InferenceService) -> Object:
    """It may do nothing, and its pods get no token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": service.name, "namespace": service.namespace, "labels": _labels(service)},
        "automountServiceAccountToken": False,
    }


def link_secret(service: InferenceService, keys: Mapping[str, str]) -> Object:
    """Holds `keys`, by file name. It can be deleted, which makes new keys and rolls every pod.

    Not `immutable`: while any pod on its node uses such a Secret, a kubelet does not look whether there is another
    one of the name by now, and gives the old keys to new pods.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": link_secret_name(service),
            "namespace": service.namespace,
            "labels": _labels(service),
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(keys[name].encode()).decode() for name in KEY_FILES},
    }


def link_keys_of(secret: Object) -> dict[str, str] | None:
    """The keys in a Secret that was read from the cluster; None where it does not hold them all."""
    data = secret.get("data") or {}
    if any(name not in data for name in KEY_FILES):
        return None
    return {name: base64.b64decode(data[name]).decode(errors="replace") for name in KEY_FILES}


def link_digest(keys: Mapping[str, str]) -> str:
    """Tells whether two sets of keys are the same, without telling the keys (each has 256 random bits)."""
    text = "\n".join(f"{name}={keys[name]}" for name in KEY_FILES)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _labels(service: InferenceService) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "kvasir",
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": "link",
        "app.kubernetes.io/managed-by": MANAGER,
    }
