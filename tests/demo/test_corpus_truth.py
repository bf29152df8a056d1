"""The demo model's corpus is true: every name in it exists.

Names are compared with the CustomResourceDefinition, the command line, the HTTP API and the documentation.
"""

import argparse
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from fastapi.routing import APIRoute

from corpus_texts import CORPUS, FEATURES, texts
from demo.batches import MAX_POSITIONS
from kvasir.cli.main import COMMANDS
from kvasir.frontend.endpoints import control, models, ops
from kvasir.frontend.endpoints.chat import route as chat
from kvasir.frontend.endpoints.chat.messages import FunctionCall, Message, TextPart, ToolCall
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.completions import route as completions
from kvasir.frontend.endpoints.completions.request import CompletionRequest
from kvasir.frontend.endpoints.description import route as description
from kvasir.frontend.endpoints.messages import route as messages
from kvasir.frontend.endpoints.pooling import embeddings, pair_scores
from kvasir.frontend.endpoints.responses import route as responses
from kvasir.frontend.endpoints.tokens import route as tokens
from kvasir.frontend.endpoints.tokens.route import DetokenizeRequest, TokenizeRequest
from kvasir.frontend.generation.generation_request import StreamOptions
from kvasir.local.manifests.manifest import read_manifest
from kvasir_contract.endpoints import HTTP_PORT, LINK_PORT, OPS_PORT
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator import operator_settings

ROOT = Path(__file__).resolve().parents[2]
CRD: Final = yaml.safe_load((ROOT / "crds/inferenceservices.serving.kvasir.dev.yaml").read_text())
SCHEMA: Final = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

# Names that are not Kvasir's: of Kubernetes, of the field, of other commands, of the OpenAI client.
KUBERNETES: Final = {
    *("ClusterIP", "ConfigMap", "CrashLoopBackOff", "CronJob", "CustomResourceDefinition", "DaemonSet"),
    *(
        "HorizontalPodAutoscaler",
        "ImagePullBackOff",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
    ),
    *("ServiceAccount", "StatefulSet"),
}
FIELD: Final = {
    *(
        "AutoRound",
        "DeepSeek",
        "FastAPI",
        "FlashAttention",
        "GiB",
        "KServe",
        "KiB",
        "LayerNorm",
        "LoRA",
        "ModelOpt",
        "OpenAI",
        "PyTorch",
        "SwiGLU",
    ),
    "ZeroMQ",
}
OTHER_OPTIONS: Final = {"--from-literal", "--help", "--previous", "--replicas"}
CLIENT_WORDS: Final = {"api_key", "base_url", "finish_reason"}


def children(node: dict[str, Any]) -> dict[str, Any]:
    """Return the fields below a node of the schema, through lists."""
    return dict(node.get("properties", {})) or dict(node.get("items", {}).get("properties", {}))


def has_path(node: dict[str, Any], path: list[str]) -> bool:
    return not path or (path[0] in children(node) and has_path(children(node)[path[0]], path[1:]))


def names_below(node: dict[str, Any]) -> Iterator[str]:
    for name, child in children(node).items():
        yield name
        yield from names_below(child)


def options() -> set[str]:
    """Return every option of `kvasir` and its subcommands, and of the operator."""

    def of(parser: argparse.ArgumentParser) -> Iterator[str]:
        yield from parser._option_string_actions
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for choice in action.choices.values():
                    yield from of(choice)

    modules = [importlib.import_module(f"kvasir.cli.{name.replace('-', '_')}") for name in COMMANDS]
    operator = re.findall(r'"(--[a-z-]+)"', Path(operator_settings.__file__).read_text())
    return {option for module in modules for option in of(module.parser())} | set(operator)


def found(pattern: str) -> set[str]:
    """Return every match in a text that the model learns to write."""
    return {match for text in texts() for match in re.findall(pattern, text)}


POOLING: Final = (embeddings, pair_scores)
ROUTES = {
    route.path
    for module in (chat, completions, control, description, messages, models, ops, responses, tokens, *POOLING)
    for route in module.router.routes
    if isinstance(route, APIRoute)
}
SPEC_FIELDS = set(names_below(SCHEMA["properties"]["spec"]))
STATUS_FIELDS = set(names_below(SCHEMA["properties"]["status"]))
BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
API_FIELDS = {
    name
    for model in (*BODIES, StreamOptions, Message, TextPart, ToolCall, FunctionCall)
    for name in model.model_fields
}
NOT_YET_FIELDS = {field for feature in FEATURES for field in feature.get("request_fields", [])}


def test_dotted_fields_exist_in_the_crd() -> None:
    parts = "|".join(children(SCHEMA["properties"]["spec"]))
    paths = found(rf"(?<![\w/.])(?:spec\.)?((?:{parts})(?:\.[A-Za-z]+)+)\b")
    assert len(paths) > 20
    unknown = {path for path in paths if not has_path(SCHEMA["properties"]["spec"], path.split("."))}
    assert unknown == set()


def test_camel_case_fields_exist_in_the_crd() -> None:
    missing = {field for feature in FEATURES for field in feature.get("spec_fields", [])}
    words = found(r"(?<![\w/.])[a-z]+(?:[A-Z][a-z]+)+\b")
    assert words - SPEC_FIELDS - STATUS_FIELDS - {"apiVersion"} - missing == set()


def test_camel_case_words_are_reasons_conditions_or_kinds() -> None:
    conditions = re.findall(r"[A-Z]\w+", next(iter(describe("type", SCHEMA["properties"]["status"]))))
    known = {*Reason, *Phase, *conditions, *KUBERNETES, *FIELD, "InferenceService", "InferenceServices"}
    words = {word.removesuffix("s") for word in found(r"(?<![\w/-])[A-Z][a-z]+(?:[A-Z]+[a-z]*)+\b")}
    assert words - {str(word).removesuffix("s") for word in known} == set()


def describe(name: str, node: dict[str, Any]) -> Iterator[str]:
    for field, child in children(node).items():
        if field == name and "description" in child:
            yield child["description"]
        yield from describe(name, child)


def test_options_exist() -> None:
    missing = {option for feature in FEATURES for option in feature.get("options", [])}
    words = found(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")
    assert len(words) > 15
    assert words - options() - OTHER_OPTIONS == set()
    assert missing & options() == set()


def test_commands_and_make_targets_exist() -> None:
    commands = found(r"\bkvasir ([a-z]+)\b(?=[^.]*)") - {"is", "get"}
    assert commands <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert found(r"\b(?:[Rr]un|command|repository and run) make ([a-z-]+)") <= targets


def test_endpoints_exist() -> None:
    paths = found(r"(?<![\w/:.~-])(/[a-z0-9_]+(?:/[a-z_]+)*)\b(?!:)")
    assert {"/v1/chat/completions", "/health/ready", "/metrics"} <= paths
    assert paths - ROUTES - {"/data", "/quit", "/reset", "/path"} == set()


def test_request_fields_exist() -> None:
    words = found(r"(?<![\w.])[a-z]+(?:_[a-z]+)+\b")
    assert len(words) > 10
    assert (
        words - API_FIELDS - CLIENT_WORDS - NOT_YET_FIELDS - {word.removeprefix("vllm:") for word in metrics()}
        == set()
    )


def metrics() -> set[str]:
    return set(re.findall(r"(?:vllm|kvasir):[a-z_]+", (ROOT / "docs/metrics.md").read_text()))


def test_metrics_exist() -> None:
    assert found(r"(?:vllm|kvasir):[a-z_]+") <= metrics()


def test_status_codes_are_documented() -> None:
    documented = set(re.findall(r"\b[45]\d\d\b", (ROOT / "docs/api.md").read_text()))
    assert found(r"\bstatus (\d{3})\b") <= documented
    asked = {
        code for entry in CORPUS.entries for text in entry.questions for code in re.findall(r"\b[45]\d\d\b", text)
    }
    assert asked <= documented


def test_environment_variables_exist() -> None:
    documented = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", (ROOT / "docs/local.md").read_text()))
    variables = {"KVASIR_" + option[2:].replace("-", "_").upper() for option in options()}
    assert found(r"\b[A-Z]+(?:_[A-Z]+)+\b") <= documented | variables


def test_answers_in_json_are_json_and_true() -> None:
    answers = [json.loads(answer) for answer in CORPUS.answer_of.values() if answer.startswith("{")]
    assert {"http": HTTP_PORT, "link": LINK_PORT, "probes": OPS_PORT} in answers
    assert {"parts": ["operator", "frontend", "engine"]} in answers
    assert {"name": "demo", "parameters": 1_870_000, "context": MAX_POSITIONS} in answers


def test_model_sources_exist() -> None:
    schemes = set(
        re.findall(
            r"([a-z]+)://",
            SCHEMA["properties"]["spec"]["properties"]["model"]["properties"]["source"]["description"],
        )
    )
    assert found(r"\b([a-z]+)://") <= schemes | {"http"}


def test_files_and_folders_exist() -> None:
    files = found(r"\b(?:docs|demo)/[a-z/-]+\.[a-z]+|\bREADME\.md")
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert [name for name in found(r"[Ff]older ([a-z0-9]+)\b") if not (ROOT / name).is_dir()] == []


def test_libraries_are_dependencies() -> None:
    dependencies = (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[0].lower()
    names = {"FastAPI", "Starlette", "uvicorn", "kopf", "PyTorch", "msgspec", "Flask", "gRPC", "Ray"}
    mentioned = {name for text in texts() if "Kvasir" in text for name in names if re.search(rf"\b{name}\b", text)}
    assert mentioned >= {"FastAPI", "kopf"}
    packages = {name.lower().replace("pytorch", "torch") for name in mentioned}
    assert {name for name in packages if f'"{name}' not in dependencies} == set()


def test_the_example_manifest_is_valid(tmp_path: Path) -> None:
    (text,) = found(r"\{apiVersion: .*\}")
    path = tmp_path / "service.yaml"
    path.write_text(text)
    (service,) = read_manifest(path).services
    assert service.name == "demo"


def test_missing_features_are_missing_in_the_crd_and_the_api() -> None:
    """If one of them is built, delete it from demo/not-yet.json and the README, and train the demo model again."""
    for feature in FEATURES:
        assert set(feature.get("spec_fields", [])) & SPEC_FIELDS == set()
        assert set(feature.get("request_fields", [])) & API_FIELDS == set()
        assert set(feature.get("request_fields", [])) <= ChatRequest.not_yet.keys()
        assert set(feature.get("endpoints", [])) & ROUTES == set()
