"""Watches, run by kopf: a change of a service, child or pod puts the service's key on the work queue.

Low-level event handlers only, so that kopf writes nothing to the cluster.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any, Final

import kopf

from kvasir_contract.api import INSTANCE_LABEL, MANAGED_BY_LABEL, MANAGER
from kvasir_operator.cluster.cluster_client import Cluster, Object
from kvasir_operator.cluster.kinds import CHILDREN, INFERENCE_SERVICE, NODE, POD, Kind
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.service_memory import Key

WATCHED: Final = (*CHILDREN, POD)


def registry(
    cluster: Cluster, put: Callable[[Key], None], cordons: Cordons[Key] | None, missing: Collection[Kind] = ()
) -> kopf.OperatorRegistry:
    """Return the handlers. `cordons` is None if nodes may not be watched; `missing` kinds do not exist."""
    handlers, changes = kopf.OperatorRegistry(), ServiceChanges()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(cluster)

    @kopf.on.event(*_selector(INFERENCE_SERVICE), registry=handlers)
    async def service_changed(
        namespace: str | None, name: str | None, type: str | None, body: kopf.Body, **_: Any
    ) -> None:
        key = Key(str(namespace), str(name))
        if changes.is_new(key, dict(body), deleted=type == "DELETED"):
            put(key)

    async def child_changed(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        put(Key(str(namespace), labels[INSTANCE_LABEL]))

    for kind in (kind for kind in WATCHED if kind not in missing):
        kopf.on.event(*_selector(kind), id=kind.plural, registry=handlers)(child_changed)
    if cordons is not None:

        @kopf.on.event(*_selector(NODE), registry=handlers)
        async def node_changed(name: str | None, type: str | None, body: kopf.Body, **_: Any) -> None:
            cordons.node_changed(str(name), None if type == "DELETED" else dict(body))

    return handlers


class ServiceChanges:
    """Recognizes events that only report our own write of a status."""

    def __init__(self) -> None:
        self._seen: dict[Key, str] = {}

    def is_new(self, key: Key, service: Object, *, deleted: bool) -> bool:
        if deleted:
            self._seen.pop(key, None)
            return True
        metadata = service["metadata"]
        # An entry changes with its manager's fields, so a status that another client writes counts.
        others = [
            entry
            for entry in metadata.get("managedFields") or ()
            if (entry.get("manager"), entry.get("subresource")) != (MANAGER, "status")
        ]
        kept = {
            name: metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "labels", "annotations")
        }
        seen = json.dumps([kept, others], sort_keys=True)
        digest = hashlib.sha256(seen.encode()).hexdigest()
        is_new = self._seen.get(key) != digest
        self._seen[key] = digest
        return is_new


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # fewer permissions and requests
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.watching.server_timeout = 300  # a watch may stall
    settings.process.ultimate_exiting_timeout = 10
    for kind in WATCHED:
        settings.watching.label_selectors[_selector(kind)] = f"{MANAGED_BY_LABEL}={MANAGER},{INSTANCE_LABEL}"
    return settings


async def connection(cluster: Cluster) -> kopf.ConnectionInfo:
    # kopf calls this again after rejected credentials
    configuration = cluster.configuration
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


def _selector(kind: Kind) -> tuple[str, str, str]:
    return kind.group, kind.version, kind.plural
