"""The manifests of docs/expose.md are accepted, and its table names the annotations that are set."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.resources.exposure import exposure
from kvasir_operator.spec import InferenceService, parse_service

PAGE = Path(__file__).parents[2] / "docs" / "expose.md"
TEXT = PAGE.read_text()
MANIFESTS: list[dict[str, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
]


def parsed(manifest: dict[str, Any]) -> InferenceService:
    spec = {"model": {"source": "demo://"}, **manifest["spec"]}
    completed, problems = CRDSchema.of_crd().complete({"metadata": {"name": "chat"}, **manifest, "spec": spec})
    assert not problems
    return parse_service(completed)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_manifest_of_the_page_is_accepted(manifest: dict[str, Any]) -> None:
    parsed(manifest)


def test_the_table_has_every_annotation() -> None:
    ingress = exposure(parsed(MANIFESTS[0]))
    assert ingress is not None
    for annotation in ingress["metadata"]["annotations"]:
        prefix, _, name = annotation.partition("/")
        (line,) = (line for line in TEXT.splitlines() if f"(`{prefix}`)" in line)
        assert f"`{name}" in line, annotation
