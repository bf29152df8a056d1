"""The kinds of object that the operator reads or writes, and their URL paths."""

from dataclasses import dataclass
from typing import Final

from kvasir_contract.api import API_VERSION, KIND, PLURAL


@dataclass(frozen=True)
class Kind:
    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        # "" for the core group
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, or of a collection in one or all namespaces."""
        parts = ["apis" if self.group else "api", self.api_version]
        parts += ["namespaces", namespace] if namespace else []
        parts += [self.plural]
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


INFERENCE_SERVICE: Final = Kind(API_VERSION, KIND, PLURAL)
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
SECRET: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
JOB: Final = Kind("batch/v1", "Job", "jobs")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INGRESS: Final = Kind("networking.k8s.io/v1", "Ingress", "ingresses")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
POD: Final = Kind("v1", "Pod", "pods")
NODE: Final = Kind("v1", "Node", "nodes")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")

# In the order in which they are applied. Secrets are not listed: the operator may only create them.
CHILDREN: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    CLAIM,
    JOB,
    SERVICE,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    INGRESS,
    HTTP_ROUTE,
    DEPLOYMENT,
    STATEFUL_SET,
)
RARE: Final = (CLAIM, JOB, INGRESS, HTTP_ROUTE)  # most services have none
OPTIONAL: Final = (HTTP_ROUTE,)  # their CustomResourceDefinitions may be missing


def kind_of(resource: dict[str, object]) -> Kind:
    return _BY_NAME[(str(resource["apiVersion"]), str(resource["kind"]))]


_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in CHILDREN}
