"""Overlays change the rules of the operator's roles by index."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
RULES = {
    role["metadata"]["name"]: role["rules"]
    for role in yaml.safe_load_all((MANIFESTS / "operator/rbac.yaml").read_text())
    if role["kind"] in ("ClusterRole", "Role")
}


def changed_rules(overlay: str) -> list[Any]:
    fields = yaml.safe_load((MANIFESTS / f"overlays/{overlay}/kustomization.yaml").read_text())
    found = []
    for patch in fields["patches"]:
        rules = RULES.get(patch.get("target", {}).get("name"), ())
        found += [
            rules[int(index)]["resources"] for index in re.findall(r"path: /rules/(\d+)", patch.get("patch", ""))
        ]
    return found


@pytest.mark.parametrize(
    ("overlay", "kind"), [("namespaced", "nodes"), ("namespaces", "nodes"), ("second", "leases")]
)
def test_an_overlay_changes_the_rule_that_it_means(overlay: str, kind: str) -> None:
    found = changed_rules(overlay)
    assert found
    assert all(resources == [kind] for resources in found)
