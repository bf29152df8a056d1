"""A strict dry run of every installed or created object, on a real API server with restricted namespaces.

A warning is a failure: the API server warns about deprecated fields, and about pods that pod security would reject.
"""

import json

import pytest

from e2e.kind.apiserver import ApiServer
from e2e.kind.progress import KindError
from e2e.manifests.conftest import CHART_VALUES, KUSTOMIZATIONS, ROOT, SERVICES, Chart, Object, Render, made_of

STRICT = ("--dry-run=server", "--validate=strict", "--warnings-as-errors")
AS_OPERATOR = ("--server-side", "--field-manager=kvasir-operator")
SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_installed_objects_are_accepted(server: ApiServer, render: Render, kustomization: str) -> None:
    accept(server, render(ROOT / kustomization))


@pytest.mark.parametrize("name", CHART_VALUES)
def test_objects_of_the_chart_are_accepted(server: ApiServer, chart: Chart, name: str) -> None:
    accept(server, chart("kvasir-system", **CHART_VALUES[name]))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_and_its_objects_are_accepted(server: ApiServer, name: str) -> None:
    accept(server, [SERVICES[name]])
    accept(server, made_of(SERVICES[name]), *AS_OPERATOR)


@pytest.mark.parametrize(
    ("change", "words"), [({"hostNetwrok": True}, "hostNetwrok"), ({"hostNetwork": True}, "host namespaces")]
)
def test_a_misspelt_field_or_an_unrestricted_pod_is_reported(server: ApiServer, change: Object, words: str) -> None:
    made = made_of(SERVICES["demo"])
    (deployment,) = (child for child in made if child["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"] |= change
    with pytest.raises(KindError, match=words):
        accept(server, [deployment], *AS_OPERATOR)


def accept(server: ApiServer, objects: list[Object], *options: str) -> None:
    for name in {item["metadata"].get("namespace", "default") for item in objects}:
        metadata = {"name": name, "labels": SECURITY}
        apply(server, [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}], "--server-side")
    apply(server, objects, *STRICT, *options)


def apply(server: ApiServer, objects: list[Object], *options: str) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    server.kubectl("apply", "--filename", "-", *options, stdin=manifest)
