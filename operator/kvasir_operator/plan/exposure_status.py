"""Whether clients outside the cluster reach the service, as a condition and as URLs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import HTTP_ROUTE
from kvasir_operator.expose_spec import CERTIFICATE, ExposeSpec, GatewayRef
from kvasir_operator.observe.observed import Object, Observed, Ownership
from kvasir_operator.plan.applies import name_taken
from kvasir_operator.plan.conditions import Condition, condition
from kvasir_operator.resources.exposure import exposure_key, outside_url
from kvasir_operator.resources.network import url
from kvasir_operator.spec import InferenceService

EXPOSED: Final = "Exposed"
_POLL_SECONDS: Final = 30.0  # The HTTPRoutes of a CustomResourceDefinition that came later are not watched.
_NO_GATEWAY_API: Final = (
    f"the cluster has no {HTTP_ROUTE.kind} ({HTTP_ROUTE.api_version}): install the Gateway API, version 1.2 or "
    "newer, and one of its controllers, or remove spec.expose.gateway to use an Ingress"
)


def exposure_conditions(service: InferenceService, observed: Observed) -> list[Condition]:
    """Return the condition of a service with `expose`, else none."""
    return [] if service.expose is None else [_exposed(service, service.expose, observed)]


def urls(service: InferenceService, observed: Observed) -> dict[str, str] | None:
    """Return the base URLs for clients, inside and outside the cluster."""
    expose = service.expose
    if expose is None:
        return None
    found = {"inside": url(service)}
    if _exposed(service, expose, observed).status is not False:
        found["outside"] = outside_url(expose)
    return found


def seconds_until_accepted(service: InferenceService, status: Mapping[str, Any]) -> float | None:
    """Return when to look at the HTTPRoute or the certificate again, or None."""
    exposed = condition(status, EXPOSED)
    by_gateway = service.expose is not None and service.expose.gateway is not None
    unwatched = by_gateway or exposed.get("reason") == Reason.INVALID_SPEC
    return _POLL_SECONDS if unwatched and exposed.get("status") != "True" else None


def _exposed(service: InferenceService, expose: ExposeSpec, observed: Observed) -> Condition:
    key = exposure_key(service, expose)
    child, refusal = observed.children.get(key), observed.refusals.get(key)
    if key[0] in observed.missing_kinds:
        return Condition(EXPOSED, False, Reason.ROUTE_REFUSED, _NO_GATEWAY_API)
    if refusal is not None:
        return Condition(EXPOSED, False, refusal.reason, refusal.message)
    if child is None or child.terminating:
        return Condition(EXPOSED, False, Reason.AWAITING_ADDRESS, f"{key[0].kind} {key[1]} does not exist yet")
    if child.ownership is Ownership.FOREIGN:
        return Condition(EXPOSED, False, Reason.NAME_TAKEN, name_taken(key).message)
    if CERTIFICATE in observed.missing_key_secrets:
        message = (
            f"{CERTIFICATE} names the Secret {expose.tls_secret}, which does not exist: create it, or let "
            "cert-manager create it by an annotation in expose.annotations"
        )
        return Condition(EXPOSED, False, Reason.INVALID_SPEC, message)
    if expose.gateway is None:
        return _of_ingress(expose, child.object)
    return _of_route(expose, expose.gateway, child.object)


def _of_ingress(expose: ExposeSpec, ingress: Object) -> Condition:
    entries = ingress.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    addresses = [entry.get("hostname") or entry.get("ip", "") for entry in entries]
    if addresses:
        message = f"{outside_url(expose)} is served at {', '.join(addresses)}"
        return Condition(EXPOSED, True, Reason.AS_DESIRED, message)
    of = f"of class {expose.ingress_class}" if expose.ingress_class else "of the cluster's default class"
    message = (
        f"no controller has reported an address for Ingress {ingress['metadata']['name']} yet: check that an "
        f"Ingress controller {of} runs; some controllers never report one"
    )
    return Condition(EXPOSED, None, Reason.AWAITING_ADDRESS, message)


def _of_route(expose: ExposeSpec, gateway: GatewayRef, route: Object) -> Condition:
    name, generation = route["metadata"]["name"], route["metadata"]["generation"]
    found = [
        entry
        for parent in route.get("status", {}).get("parents") or ()
        if _is_about(parent, gateway, route["metadata"]["namespace"])
        for entry in parent.get("conditions") or ()
        if entry.get("observedGeneration", generation) == generation
    ]
    if refused := next(_refused(found), None):
        why = f"{refused['reason']}: {refused['message']}" if refused.get("message") else refused["reason"]
        message = f"Gateway {gateway} does not accept HTTPRoute {name} ({why}): correct the Gateway or spec.expose"
        return Condition(EXPOSED, False, Reason.ROUTE_REFUSED, message)
    if any(entry["type"] == "Accepted" for entry in found):
        return Condition(EXPOSED, True, Reason.AS_DESIRED, f"Gateway {gateway} accepts {outside_url(expose)}")
    message = (
        f"no controller has reported on HTTPRoute {name} yet: check that Gateway {gateway} exists and that its "
        "controller runs"
    )
    return Condition(EXPOSED, None, Reason.AWAITING_ADDRESS, message)


def _is_about(parent: Mapping[str, Any], gateway: GatewayRef, namespace: str) -> bool:
    ref = parent.get("parentRef") or {}
    return (ref.get("name"), ref.get("namespace", namespace)) == (gateway.name, gateway.namespace)


def _refused(conditions: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for kind in ("Accepted", "ResolvedRefs"):
        yield from (entry for entry in conditions if entry["type"] == kind and entry["status"] == "False")
