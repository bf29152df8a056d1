import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.cli import engine as engine_command
from kvasir.cli import frontend as frontend_command
from kvasir.local.manifests.crd_schema import CRDSchema

ROOT = Path(__file__).parents[3]
CRD = yaml.safe_load((ROOT / "crds" / "inferenceservices.serving.kvasir.dev.yaml").read_text())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = CRDSchema.of_crd()


def walk(node: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, node)]
    for name, inner in node.get("properties", {}).items():
        found += walk(inner, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in node:
            found += walk(node[keyword], f"{path}[]")
    return found


NODES = walk(VERSION["schema"]["openAPIV3Schema"])
KEYWORDS = {
    *(
        "type",
        "format",
        "description",
        "default",
        "enum",
        "required",
        "properties",
        "additionalProperties",
        "items",
    ),
    *("minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *("x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}


def test_schema_uses_only_keywords_that_are_checked() -> None:
    for path, node in NODES:
        assert set(node) <= KEYWORDS, path
        of_any_type = "x-kubernetes-preserve-unknown-fields" in node and "pattern" in node
        typeless = of_any_type or node.get("x-kubernetes-int-or-string", False)
        assert ("type" in node) != typeless, f"{path} needs one type"
        assert not ("properties" in node and "additionalProperties" in node), path
        if node.get("type") == "array":
            assert "items" in node, path
            assert node.get("x-kubernetes-list-type") in ("atomic", "set", "map"), path


def test_every_field_is_described() -> None:
    for path, node in NODES:
        if path and not path.endswith("[]") and path != ".metadata":
            assert node.get("description", "").endswith("."), path


def test_a_description_names_its_fields_default() -> None:
    """`kubectl explain` shows no other."""
    scalars = [(path, node) for path, node in NODES if node.get("type") != "object" and "default" in node]
    assert len(scalars) >= 8
    for path, node in scalars:
        default = json.dumps(node["default"]).strip('"') or "empty"
        assert f"Default: {default}" in node["description"], path


def test_every_string_list_and_map_of_the_spec_is_bounded() -> None:
    for path, node in NODES:
        if not path.startswith(".spec"):
            continue
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_every_rule_has_a_message() -> None:
    for path, node in NODES:
        for rule in node.get("x-kubernetes-validations", ()):
            assert set(rule) - {"messageExpression"} == {"rule", "message"}, path


def test_messages_stay_within_the_api_servers_budget() -> None:
    """It estimates the text of a number as unbounded, and refuses the whole schema."""
    for path, node in NODES:
        for rule in node.get("x-kubernetes-validations", ()):
            assert "string(" not in rule.get("messageExpression", ""), path


def test_a_rule_about_texts_of_an_object_names_them() -> None:
    for path in (".spec.engine", ".spec.frontend", ".spec.engine.pod.labels", ".spec.engine.pod.env[]"):
        for rule in dict(NODES)[path]["x-kubernetes-validations"]:
            assert "self." in rule.get("messageExpression", "") or "maxNumSeqs" in rule["rule"], path


@pytest.mark.parametrize(
    "path",
    [
        ".spec.model.source",
        ".spec.engine.dtype",
        ".spec.engine.nodes",
        ".spec.engine.kvCache.blockSize",
        ".spec.operatorClass",
    ],
)
def test_fields_that_cannot_change_are_immutable(path: str) -> None:
    rules = [rule["rule"] for rule in dict(NODES)[path]["x-kubernetes-validations"]]
    assert "self == oldSelf" in rules


def test_paths_of_columns_and_scale_exist() -> None:
    paths = {path for path, _ in NODES}
    scale = VERSION["subresources"]["scale"]
    for path in (scale["specReplicasPath"], scale["statusReplicasPath"], scale["labelSelectorPath"]):
        assert path in paths
    for column in VERSION["additionalPrinterColumns"]:
        plain = column["jsonPath"].replace("[0]", "[]").partition("[?")[0]
        assert plain in paths or plain == ".metadata.creationTimestamp"


def test_wide_output_shows_the_sizes_of_an_engine() -> None:
    sizes = {"DP": "dataParallelSize", "TP": "tensorParallelSize", "PP": "pipelineParallelSize"}
    columns = {column["name"]: column for column in VERSION["additionalPrinterColumns"]}
    for name, field in sizes.items():
        assert (columns[name]["jsonPath"], columns[name]["priority"]) == (f".spec.engine.{field}", 1)


def test_crd_is_small_enough_for_kubectls_annotation() -> None:
    assert len(yaml.safe_dump(CRD)) < 200 * 1024


@pytest.mark.parametrize(("component", "command"), [("engine", engine_command), ("frontend", frontend_command)])
def test_options_that_extra_args_refuses_exist_and_others_remain(component: str, command: Any) -> None:
    """A renamed option must be renamed in the rule too."""
    options = set(command.parser()._option_string_actions)
    node = dict(NODES)[f".spec.{component}"]
    patterns = [r["rule"] for r in node["x-kubernetes-validations"] if "extraArgs" in r["rule"]]
    lists = [found for rule in patterns for found in re.findall(r"'\^(--?)\(([^)]*)\)", rule)]
    assert len(lists) >= len(patterns)
    refused = {dashes + name for dashes, names in lists for name in names.split("|")}
    assert refused <= options
    assert {"--log-level", "--heartbeat-timeout", "--download-dir"} <= options - refused
