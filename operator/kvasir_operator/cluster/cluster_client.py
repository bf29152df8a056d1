"""A client of the API server that uses plain dictionaries, over connections and tokens of kubernetes.aio.

The library's typed models cost memory and import time, and drop unknown fields.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from kvasir_contract.api import MANAGER
from kvasir_operator.cluster.kinds import Kind

Object = dict[str, Any]

CONNECT_TIMEOUT: Final = 5.0
REQUEST_TIMEOUT: Final = 30.0
PAGE: Final = 500  # objects of a list

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


class ClusterError(Exception):
    """A failed request, with the API server's message or the reason for the missing response."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", causes: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(message)
        self.status = status  # 0 without a response
        self.reason = reason  # such as Forbidden or Invalid
        self.causes = causes


class NotFoundError(ClusterError):
    """The object or the kind does not exist."""


class ConflictError(ClusterError):
    """The object exists or has changed, or another manager owns a field."""


class InvalidError(ClusterError):
    """The API server rejects the object."""


_BY_STATUS: Final[Mapping[int, type[ClusterError]]] = {404: NotFoundError, 409: ConflictError, 422: InvalidError}


class Cluster:
    """A connection pool to the API server. Every method raises ClusterError."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._client = ApiClient(configuration)
        self._client.user_agent = MANAGER
        self._timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """Connect to the cluster of `kubeconfig`, of this pod, or of the user's kubeconfig."""
        configuration = Configuration()
        try:
            if kubeconfig is not None:
                raise ConfigException("a kubeconfig is given")
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except ConfigException:
            file = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            try:
                await load_kube_config(file, client_configuration=configuration)  # type: ignore[no-untyped-call]
            except Exception as error:  # the library raises arbitrary exceptions for a malformed kubeconfig
                raise ClusterError(
                    f"no cluster found: this process is not in a pod, and {file} cannot be used ({error}); set "
                    "KUBECONFIG to a valid file"
                ) from error
        return cls(configuration)

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------------------------------------------- objects

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return await self._request("GET", kind.path(namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "", page: int = PAGE
    ) -> list[Object]:
        """List objects from etcd, not from a cache."""
        found: list[Object] = []
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(page)} | {name: text for name, text in selectors.items() if text}
        while True:
            answer = await self._request("GET", kind.path(namespace), query)
            found += answer["items"]
            more = answer["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    async def probe(self, kind: Kind, namespace: str | None) -> None:
        await self._request("GET", kind.path(namespace), {"limit": "1"})

    async def has_api_group(self, name: str) -> bool:
        try:
            await self._request("GET", f"/apis/{name}")
        except ClusterError as error:
            if error.status in (403, 404):
                return False
            raise
        return True

    async def apply(
        self,
        kind: Kind,
        resource: Object,
        *,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Apply an object. Without `force`, raises ConflictError if another manager owns a field."""
        metadata = resource["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], subresource)
        query = {"fieldManager": MANAGER, "force": "true" if force else "false", "fieldValidation": "Strict"}
        return await self._request("PATCH", path, query | _dry(dry_run), resource, _APPLY)

    async def merge(self, kind: Kind, existing: Object, fields: Object) -> Object:
        # replaces lists; conflicts if the object has changed
        metadata = existing["metadata"]
        own = {**fields.get("metadata", {}), "resourceVersion": metadata["resourceVersion"]}
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._request("PATCH", path, {"fieldManager": MANAGER}, {**fields, "metadata": own}, _MERGE)

    async def create(self, kind: Kind, namespace: str, resource: Object, *, dry_run: bool = False) -> Object:
        query = {"fieldManager": MANAGER} | _dry(dry_run)
        return await self._request("POST", kind.path(namespace), query, resource)

    async def replace(self, kind: Kind, resource: Object, *, dry_run: bool = False) -> Object:
        # conflicts if the object has changed since its resourceVersion
        metadata = resource["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, {"fieldManager": MANAGER} | _dry(dry_run), resource)

    async def delete(self, kind: Kind, resource: Object, *, grace: int | None = None) -> None:
        # only the object with this UID; a missing one is not an error
        metadata = resource["metadata"]
        options: Object = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._request("DELETE", kind.path(metadata["namespace"], metadata["name"]), body=options)
        except (NotFoundError, ConflictError):
            return

    # ------------------------------------------------------------------------------------------------ transport

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
    ) -> Object:
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=self._timeout)
            data: bytes = await response.read()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            cause = str(error) or type(error).__name__
            raise ClusterError(f"the API server {self.configuration.host} does not respond: {cause}") from error
        if response.status >= 400:
            raise _error(response.status, data)
        answer: Object = json.loads(data)
        return answer


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _error(status: int, data: bytes) -> ClusterError:
    # a proxy may return any other body
    causes: frozenset[str] = frozenset()
    try:
        answer = json.loads(data)
        message, reason = str(answer["message"]), str(answer.get("reason", ""))
        found = (answer.get("details") or {}).get("causes") or ()
        causes = frozenset(str(cause.get("reason", "")) for cause in found)
    except (ValueError, KeyError, TypeError, AttributeError):
        message, reason = data[:200].decode(errors="replace").strip() or f"HTTP status {status}", ""
    if status == 422 and "metadata.uid" in message:
        return ConflictError(f"another object has this name now: {message}", status=409, reason="Conflict")
    return _BY_STATUS.get(status, ClusterError)(message, status=status, reason=reason, causes=causes)
