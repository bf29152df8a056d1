"""The Ingress or HTTPRoute of a service. KVASIR_UPDATE_GOLDEN=1 rewrites the golden file: review the difference."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_operator.expose_spec import ExposeSpec
from kvasir_operator.resources.engine_stateful_set import engine_stateful_set
from kvasir_operator.resources.exposure import exposure, outside_url
from kvasir_operator.resources.frontend_deployment import frontend_deployment
from kvasir_operator.resources.pinning import inputs
from kvasir_operator.spec import InferenceService
from operator_facts import RELEASE, SECRET_NAME, service

GOLDEN = Path(__file__).parents[1] / "golden" / "exposure.yaml"
HOST = "llm.example.com"
INGRESS: dict[str, Any] = {"host": HOST, "tls": {"secretName": "llm-tls"}, "ingressClassName": "nginx"}
GATEWAY: dict[str, Any] = {
    "host": HOST,
    "gateway": {"name": "public", "namespace": "infra", "sectionName": "https"},
}


def exposed(**fields: Any) -> InferenceService:
    return service(expose={"host": HOST, **fields})


def expose_of(**fields: Any) -> ExposeSpec:
    expose = exposed(**fields).expose
    assert expose is not None
    return expose


def body(of: InferenceService) -> dict[str, Any]:
    found = exposure(of)
    assert found is not None
    return found


def test_exposures_are_those_of_the_golden_file() -> None:
    rendered = [body(service(expose=expose)) for expose in (INGRESS, GATEWAY)]
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(rendered, sort_keys=False, width=116))
    assert rendered == list(yaml.safe_load_all(GOLDEN.read_text()))


def test_a_service_without_expose_has_no_exposure() -> None:
    assert exposure(service()) is None


def test_annotations_of_the_user_win_over_ours() -> None:
    name = "nginx.ingress.kubernetes.io/proxy-read-timeout"
    annotations = body(exposed(annotations={name: "60", "cert-manager.io/issuer": "ca"}))["metadata"]["annotations"]
    assert (annotations[name], annotations["cert-manager.io/issuer"]) == ("60", "ca")


def test_an_ingress_speaks_https_to_frontends_with_tls() -> None:
    args = {"extraArgs": ["--ssl-certfile=/tls/tls.crt", "--ssl-keyfile=/tls/tls.key"]}
    of = service(expose=INGRESS, frontend=args)
    assert body(of)["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
    assert (
        "nginx.ingress.kubernetes.io/backend-protocol"
        not in body(service(expose=INGRESS))["metadata"]["annotations"]
    )


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "http://llm.example.com/v1"),
        ({"tls": {}}, "https://llm.example.com/v1"),
        ({"tls": {"secretName": "x"}, "path": "/qwen"}, "https://llm.example.com/qwen/v1"),
        ({"gateway": {"name": "public"}, "tls": {}}, "https://llm.example.com/v1"),
    ],
)
def test_the_outside_url_has_scheme_host_and_path(fields: dict[str, Any], url: str) -> None:
    assert outside_url(expose_of(**fields)) == url


def test_a_gateway_is_in_the_services_namespace_by_default() -> None:
    (parent,) = body(exposed(gateway={"name": "public"}))["spec"]["parentRefs"]
    assert parent == {"name": "public", "namespace": "default"}


def test_a_path_changes_only_the_frontends() -> None:
    plain, below = exposed(), exposed(path="/qwen")
    args = frontend_deployment(below, RELEASE, SECRET_NAME)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--root-path") + 1] == "/qwen"
    assert inputs(plain, "frontend", "") != inputs(below, "frontend", "")
    assert engine_stateful_set(plain, RELEASE, "") == engine_stateful_set(below, RELEASE, "")


def test_a_host_replaces_no_pod() -> None:
    for component, render in (("engine", engine_stateful_set), ("frontend", frontend_deployment)):
        assert render(service(), RELEASE, "") == render(exposed(), RELEASE, ""), component
