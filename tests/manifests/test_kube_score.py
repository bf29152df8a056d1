"""kube-score's opinion of everything that is installed or made."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kvasir.local.manifest import read_manifest
from kvasir_operator.link_keys import new_link_keys
from kvasir_operator.resources.children import children
from kvasir_operator.resources.pod import Images

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "kube_score_exceptions.yaml").read_text())
PASSED = 10
"""kube-score's grade without a remark."""

Failing = Callable[[str], set[str]]
"""The checks that some objects, as YAML, do not pass."""


@pytest.fixture(scope="module")
def failing(kube_score: str) -> Failing:
    def checks(objects: str) -> set[str]:
        command = [kube_score, "score", "--output-format", "json", "--kubernetes-version", "v1.34", "-"]
        answer = subprocess.run(command, input=objects, capture_output=True, text=True, check=False)
        results = [check for item in json.loads(answer.stdout) for check in item["checks"]]
        assert results, answer.stderr
        return {item["check"]["id"] for item in results if not item["skipped"] and item["grade"] < PASSED}

    return checks


@pytest.mark.parametrize("kustomization", ["manifests", "manifests/overlays/namespaced"])
def test_what_is_installed_passes_but_for_the_exceptions(
    failing: Failing, kubectl: str, kustomization: str
) -> None:
    command = [kubectl, "kustomize", str(ROOT / kustomization)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert failing(rendered) == set(EXCEPTIONS["operator"])


def test_what_the_operator_makes_passes_but_for_the_exceptions(failing: Failing) -> None:
    service = read_manifest(ROOT / "manifests/examples/demo.yaml").services[0]
    images = Images(frontend="kvasir-frontend:1.0", engine="kvasir-engine:1.0")
    rendered = yaml.safe_dump_all(children(service, images, new_link_keys()))
    assert failing(rendered) == set(EXCEPTIONS["service"])


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason.split()) > 4 for checks in EXCEPTIONS.values() for reason in checks.values())
