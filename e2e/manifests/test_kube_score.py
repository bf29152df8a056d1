"""kube-score's checks of every installed or created object."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.manifests.conftest import CHART_VALUES, KUSTOMIZATIONS, ROOT, SERVICES, Chart, Object, Render, made_of

EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "kube_score_exceptions.yaml").read_text())
PASSED = 10
"""kube-score's grade without a remark."""

Failing = Callable[[list[Object]], set[str]]
"""Returns the checks that some objects do not pass."""


@pytest.fixture(scope="module")
def failing(kube_score: str) -> Failing:
    def checks(objects: list[Object]) -> set[str]:
        command = [kube_score, "score", "--output-format", "json", "--kubernetes-version", "v1.34", "-"]
        manifest = yaml.safe_dump_all(objects)
        answer = subprocess.run(command, input=manifest, capture_output=True, text=True, check=False)
        results = [check for item in json.loads(answer.stdout) for check in item["checks"]]
        assert results, answer.stderr
        return {item["check"]["id"] for item in results if not item["skipped"] and item["grade"] < PASSED}

    return checks


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_installed_objects_pass_except_for_the_exceptions(
    failing: Failing, render: Render, kustomization: str
) -> None:
    assert failing(render(ROOT / kustomization)) == set(EXCEPTIONS["operator"])


@pytest.mark.parametrize("name", ["default", "namespaces", "second"])
def test_objects_of_the_chart_pass_except_for_the_exceptions(failing: Failing, chart: Chart, name: str) -> None:
    assert failing(chart("kvasir-system", **CHART_VALUES[name])) == set(EXCEPTIONS["operator"])


def test_the_operators_objects_pass_except_for_the_exceptions(failing: Failing) -> None:
    found = {name: failing(made_of(service)) for name, service in SERVICES.items()}
    assert set().union(*found.values()) == set(EXCEPTIONS["service"]), found


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason.split()) > 4 for checks in EXCEPTIONS.values() for reason in checks.values())
