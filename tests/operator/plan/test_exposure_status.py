"""The condition Exposed and the URLs of a service."""

from typing import Any

import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import HTTP_ROUTE, INGRESS
from kvasir_operator.expose_spec import CERTIFICATE
from kvasir_operator.observe.observed import Object, Observed, Ownership, Refusal
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, engines, frontends, observed, owned_by, service

BY_INGRESS = service(expose={"host": "llm.example.com", "tls": {}, "ingressClassName": "nginx"})
BY_GATEWAY = service(expose={"host": "llm.example.com", "gateway": {"name": "public", "namespace": "infra"}})


def facts(of: InferenceService, status: Object | None = None, **more: Any) -> Observed:
    found = observed(of, engines("ready", "ready"), frontends("ready"), **more)
    for kind, child in found.children.items():
        if kind[0] in (INGRESS, HTTP_ROUTE):
            child.object.update({"status": status or {}})
            child.object["metadata"].setdefault("generation", 2)
    return found


def planned(of: InferenceService, found: Observed) -> Plan:
    return make_plan(of, found, {}, RELEASE, NOON)


def exposed(of: InferenceService, found: Observed) -> tuple[str, str, str]:
    entry = condition(planned(of, found).status, "Exposed")
    return entry["status"], entry["reason"], entry["message"]


def outside(of: InferenceService, found: Observed) -> str | None:
    urls: dict[str, str] = planned(of, found).status["urls"]
    return urls.get("outside")


ACCEPTED = ("Accepted", "True", "Accepted")


def parent(*conditions: tuple[str, str, str], generation: int = 2, namespace: str = "infra") -> Object:
    entries = [
        {"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": generation}
        for kind, status, reason in conditions
    ]
    return {"parents": [{"parentRef": {"name": "public", "namespace": namespace}, "conditions": entries}]}


def test_a_service_without_expose_has_no_condition() -> None:
    of = service()
    status = planned(of, facts(of)).status
    assert (condition(status, "Exposed"), status.get("urls")) == ({}, None)


def test_an_ingress_with_an_address_is_exposed() -> None:
    found = facts(BY_INGRESS, {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example"}]}})
    status, reason, message = exposed(BY_INGRESS, found)
    assert (status, reason) == ("True", "AsDesired")
    assert message == "https://llm.example.com/v1 is served at 192.0.2.1, lb.example"
    assert planned(BY_INGRESS, found).status["urls"] == {
        "inside": "http://demo.default.svc/v1",
        "outside": "https://llm.example.com/v1",
    }


def test_an_ingress_without_an_address_is_unknown() -> None:
    """Some controllers never report one, so it is neither a failure nor polled."""
    status, reason, message = exposed(BY_INGRESS, facts(BY_INGRESS))
    assert (status, reason) == ("Unknown", "AwaitingAddress")
    assert "controller of class nginx" in message
    assert outside(BY_INGRESS, facts(BY_INGRESS)) is not None
    assert planned(BY_INGRESS, facts(BY_INGRESS)).again is None


@pytest.mark.parametrize(
    ("status", "condition_status", "words"),
    [
        (
            parent(ACCEPTED, ("ResolvedRefs", "True", "ResolvedRefs")),
            "True",
            "accepts http://llm",
        ),
        (parent(("Accepted", "False", "NotAllowedByListeners")), "False", "NotAllowedByListeners"),
        (
            parent(ACCEPTED, ("ResolvedRefs", "False", "RefNotPermitted")),
            "False",
            "RefNotPermitted",
        ),
        (parent(ACCEPTED, generation=1), "Unknown", "no controller has reported"),
        (parent(ACCEPTED, namespace="other"), "Unknown", "no controller has reported"),
        ({}, "Unknown", "check that Gateway infra/public exists"),
    ],
)
def test_a_route_is_exposed_when_its_gateway_accepts_it(status: Object, condition_status: str, words: str) -> None:
    found = facts(BY_GATEWAY, status)
    assert exposed(BY_GATEWAY, found)[0] == condition_status
    assert words in exposed(BY_GATEWAY, found)[2]
    assert (outside(BY_GATEWAY, found) is None) is (condition_status == "False")
    assert (planned(BY_GATEWAY, found).again is None) is (condition_status == "True")


def test_without_the_gateway_api_the_status_says_what_to_install() -> None:
    found = facts(BY_GATEWAY, missing_kinds=frozenset({HTTP_ROUTE}))
    found = found.with_changes(
        children={key: child for key, child in found.children.items() if key[0] is not HTTP_ROUTE}
    )
    plan = planned(BY_GATEWAY, found)
    assert (plan.applies, plan.again) == ((), 30)
    entry = condition(plan.status, "Exposed")
    assert (entry["status"], entry["reason"]) == ("False", "RouteRefused")
    assert "install the Gateway API" in entry["message"]
    assert condition(plan.status, "Ready")["status"] == "True"


def test_a_refused_or_foreign_ingress_is_named() -> None:
    refused = {(INGRESS, "demo"): Refusal(Reason.REFUSED, "quota exceeded")}
    assert exposed(BY_INGRESS, facts(BY_INGRESS, refusals=refused)) == ("False", "Refused", "quota exceeded")
    found = facts(BY_INGRESS)
    foreign = owned_by(found.children[INGRESS, "demo"], Ownership.FOREIGN)
    found = found.with_changes(children={**found.children, (INGRESS, "demo"): foreign})
    assert exposed(BY_INGRESS, found)[1] == "NameTaken"


def test_a_missing_certificate_is_named() -> None:
    of = service(expose={"host": "llm.example.com", "tls": {"secretName": "llm-tls"}})
    assert of.named_secrets == {CERTIFICATE: "llm-tls"}
    found = facts(of, missing_key_secrets=frozenset({CERTIFICATE}))
    assert exposed(of, found)[:2] == ("False", "InvalidSpec")
    assert "names the Secret llm-tls, which does not exist" in exposed(of, found)[2]
    assert condition(planned(of, found).status, "Ready")["reason"] == "AsDesired"
    assert planned(of, found).again == 30
