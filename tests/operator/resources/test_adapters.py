"""A list of LoRA adapters is in a ConfigMap: a change of it changes no pod."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.lora_settings import read_modules_file
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.environment import ADAPTERS_DIRECTORY, ADAPTERS_FILE, LORA_MODULES_FILE
from kvasir_operator.resources.children import children
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service
from kvasir_operator.spec_values import InvalidSpec

SCHEMA = CRDSchema.of_crd()
RELEASE = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
SQL = {"name": "sql", "source": "hf://org/sql-lora@v2"}
TONE = {"name": "tone", "source": "file:///adapters/tone"}


def completed(adapters: list[dict[str, str]] | None, **model: Any) -> tuple[Any, list[str]]:
    spec: dict[str, Any] = {"model": {"source": "hf://org/name", **model}}
    if adapters is not None:
        spec["model"]["loraAdapters"] = adapters
    resource, problems = SCHEMA.complete({"metadata": {"name": "demo", "uid": "1"}, "spec": spec})
    return resource, [str(problem) for problem in problems]


def service(adapters: list[dict[str, str]] | None, **model: Any) -> InferenceService:
    resource, problems = completed(adapters, **model)
    assert not problems
    return parse_service(resource)


def config_map(*adapters: dict[str, str]) -> dict[str, Any]:
    (found,) = [each for each in children(service([*adapters]), RELEASE, "") if each["kind"] == "ConfigMap"]
    return found


def changed(before: InferenceService, after: InferenceService) -> list[str]:
    old, new = children(before, RELEASE, "link"), children(after, RELEASE, "link")
    return [child["kind"] for child in new if child not in old]


def test_a_change_of_adapters_changes_only_the_config_map() -> None:
    assert changed(service([SQL]), service([SQL, TONE])) == ["ConfigMap"]
    assert changed(service([]), service([SQL])) == ["ConfigMap"]
    assert changed(service([SQL]), service([])) == ["ConfigMap"]
    assert changed(service(None), service([])) == ["ConfigMap", "Deployment", "StatefulSet"]


def test_frontends_can_read_the_config_map() -> None:
    found = config_map(TONE, SQL)
    text = found["data"][ADAPTERS_FILE]
    assert json.loads(text) == [TONE, SQL]
    assert [module.name for module in read_modules_file(text.encode(), Path(ADAPTERS_FILE))] == ["tone", "sql"]
    spec = frontend_template(service([]), RELEASE, "")["spec"]
    (volume,) = [each for each in spec["volumes"] if "configMap" in each]
    assert volume["configMap"]["name"] == found["metadata"]["name"]
    (frontend,) = spec["containers"]
    assert {"name": LORA_MODULES_FILE, "value": f"{ADAPTERS_DIRECTORY}/{ADAPTERS_FILE}"} in frontend["env"]
    assert ADAPTERS_DIRECTORY in [mount["mountPath"] for mount in frontend["volumeMounts"]]


@pytest.mark.parametrize(("adapters", "takes"), [(None, False), ([], True), ([SQL], True)])
def test_engines_take_adapters_if_there_is_a_list(adapters: list[dict[str, str]] | None, takes: bool) -> None:
    (container,) = engine_template(service(adapters), RELEASE, "")["spec"]["containers"]
    assert ("--enable-lora" in container["args"]) == takes


def test_a_frontend_that_reads_adapters_has_the_token() -> None:
    spec = frontend_template(service([], tokenSecret={"name": "hf"}), RELEASE, "")["spec"]
    assert "initContainers" not in spec
    assert "HF_TOKEN" in [variable["name"] for variable in spec["containers"][0]["env"]]


@pytest.mark.parametrize(
    ("adapters", "served", "words"),
    [
        ([SQL, TONE, {**TONE, "name": "sql"}], [], "two adapters have the name sql"),
        ([SQL], ["demo", "sql"], "sql is a name of the model too"),
        ([{"name": "sql", "source": "demo://"}], [], "unknown URI scheme"),
        ([{"name": "sql", "source": "hf://org/name:Q4_K_M"}], [], "write hf://org/name"),
        ([{"name": "no name", "source": "hf://org/name"}], [], "name"),
    ],
)
def test_the_schema_names_an_unusable_adapter(adapters: Any, served: list[str], words: str) -> None:
    _, problems = completed(adapters, **({"servedNames": served} if served else {}))
    assert any(words in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("model", "engine", "words"),
    [
        ({"task": "embed"}, {}, "model.task is embed or classify"),
        ({"task": "classify"}, {}, "model.task is embed or classify"),
        ({}, {"resourceName": "", "tensorParallelSize": 2, "nodes": 2}, "engine.nodes above 1"),
    ],
)
def test_the_schema_refuses_adapters_that_engines_refuse(model: Any, engine: Any, words: str) -> None:
    for adapters, refused in (([], True), ([SQL], True), (None, False)):
        listed = {} if adapters is None else {"loraAdapters": adapters}
        spec = {"model": {"source": "demo://", **model, **listed}, "engine": engine}
        _, problems = SCHEMA.complete({"metadata": {"name": "demo", "uid": "1"}, "spec": spec})
        assert any(words in str(problem) for problem in problems) == refused


def test_an_adapter_may_not_have_the_name_of_the_service() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.model\.loraAdapters: demo is a name of the model too"):
        service([{**SQL, "name": "demo"}])
