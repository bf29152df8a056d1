"""The permissions of the operator's ServiceAccount, checked with its token on a real API server."""

import json
import subprocess
from collections.abc import Callable

import pytest

from e2e.kind import cache
from e2e.kind.apiserver import ApiServer
from e2e.kind.build.binaries import gateway_api_crds
from e2e.kind.progress import Log
from e2e.manifests.conftest import ROOT, SERVICES, made_of

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]
"""kubectl with only the operator's permissions. A refusal is a result and not an error."""
NEW_SECRET = ("create", "secret", "generic", "--dry-run=server")


@pytest.fixture(scope="module")
def operator(server: ApiServer, kubectl: str) -> Kubectl:
    server.kubectl("apply", "--kustomize", str(ROOT / "manifests"))
    kubeconfig = server.kubeconfig_of("kvasir-system", "kvasir-operator")

    def run(*arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = [kubectl, f"--kubeconfig={kubeconfig}", "--namespace=default", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    return run


def test_a_dry_run_shows_whether_a_secrets_name_is_taken(server: ApiServer, operator: Kubectl) -> None:
    server.kubectl("--namespace=default", "create", "secret", "generic", "taken", "--from-literal=key=value")
    assert "already exists" in operator(*NEW_SECRET, "taken").stderr
    assert operator(*NEW_SECRET, "free").returncode == 0


@pytest.mark.parametrize("verb", ["get", "list", "watch", "update", "patch", "delete", "deletecollection"])
def test_a_secret_cannot_be_read_or_changed(operator: Kubectl, verb: str) -> None:
    assert operator("auth", "can-i", verb, "secrets").stdout.strip() == "no"


def test_the_rights_suffice_to_make_a_service(operator: Kubectl) -> None:
    secret, *others = made_of(SERVICES["demo"])
    created = operator("create", "--filename=-", "--dry-run=server", stdin=json.dumps(secret))
    assert created.returncode == 0, created.stderr
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": others})
    for repetition in ("made", "repaired"):
        applied = operator("apply", "--server-side", "--filename=-", stdin=manifest)
        assert applied.returncode == 0, (repetition, applied.stderr)
    assert operator("delete", "--filename=-", "--wait=false", stdin=manifest).returncode == 0


@pytest.mark.parametrize("resource", ["ingresses.networking.k8s.io", "httproutes.gateway.networking.k8s.io"])
def test_a_service_can_be_exposed(server: ApiServer, operator: Kubectl, resource: str) -> None:
    for file in gateway_api_crds(Log(cache.logs() / "gateway-api.log")):
        server.kubectl("apply", "--server-side", "--filename", str(file))
    assert not missing_rights(operator, resource)


@pytest.mark.parametrize("resource", ["jobs.batch", "persistentvolumeclaims"])
def test_a_model_can_be_cached(operator: Kubectl, resource: str) -> None:
    assert not missing_rights(operator, resource)


def missing_rights(operator: Kubectl, resource: str) -> list[str]:
    verbs = ("get", "list", "watch", "create", "patch", "delete")
    return [verb for verb in verbs if operator("auth", "can-i", verb, resource).stdout.strip() != "yes"]


@pytest.mark.parametrize("resource", ["pods", "nodes"])
@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_pods_and_nodes_can_be_observed(operator: Kubectl, verb: str, resource: str) -> None:
    assert operator("auth", "can-i", verb, resource, "--all-namespaces").stdout.strip() == "yes"
