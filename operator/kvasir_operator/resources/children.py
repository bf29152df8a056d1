"""The desired state: all objects that an InferenceService owns in a cluster."""

from typing import Final

from kvasir_contract.api import INSTANCE_LABEL, MANAGED_BY_LABEL, MANAGER
from kvasir_operator.cluster.kinds import Kind, kind_of
from kvasir_operator.resources.adapter_list import adapters_config_map
from kvasir_operator.resources.disruption import disruption_budgets
from kvasir_operator.resources.engine_stateful_set import engine_stateful_set
from kvasir_operator.resources.exposure import exposure
from kvasir_operator.resources.frontend_deployment import frontend_deployment
from kvasir_operator.resources.model_cache import cache_claim
from kvasir_operator.resources.names import Object
from kvasir_operator.resources.network import engine_service, frontend_service, http_service
from kvasir_operator.resources.network_policy import network_policies
from kvasir_operator.resources.release import Release
from kvasir_operator.resources.security import service_account
from kvasir_operator.spec import InferenceService


def children(service: InferenceService, release: Release, link_secret: str, filled: str = "") -> list[Object]:
    """Return the objects in the order in which they are applied, dependencies of pods first.

    `link_secret` is the name of a Secret that the operator creates once and cannot read. `filled`: see
    `cache_claim`. The Job of a cache is not among them: it exists only until the cache is filled.
    """
    exposed = exposure(service)
    return [
        service_account(service, link_secret),
        *([adapters_config_map(service)] if service.model.takes_adapters else ()),
        *([cache_claim(service, service.model.cache, filled)] if service.model.cache else ()),
        http_service(service),
        frontend_service(service),
        engine_service(service),
        *disruption_budgets(service, release),
        *(network_policies(service, release) if service.network.policy else ()),
        *([exposed] if exposed is not None else ()),
        frontend_deployment(service, release, link_secret),
        engine_stateful_set(service, release, link_secret),
    ]


def child_keys(service: InferenceService) -> list[tuple[Kind, str]]:
    return [(kind_of(child), child["metadata"]["name"]) for child in children(service, _NO_RELEASE, "")]


_NO_RELEASE: Final = Release(frontend_image="", engine_image="", version="")


def children_selector(name: str) -> str:
    return f"{INSTANCE_LABEL}={name},{MANAGED_BY_LABEL}={MANAGER}"
