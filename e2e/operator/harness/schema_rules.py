"""The CEL rules of the schema of an InferenceService, and cases that break them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

CRD: Final = Path(__file__).parents[3] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"

Spec = dict[str, Any]
WHOLE: Final = "<nil>"
"""The path in the API server's message for a rule about the whole object."""


@dataclass(frozen=True)
class Rule:
    path: str
    message: str

    def is_broken_by(self, case: "Refusal") -> bool:
        return case.path == self.path and case.words in self.message


@dataclass(frozen=True)
class Refusal:
    """A rejected spec. `change` is merged into the existing service `before`, or into a new one if that is {}."""

    path: str
    words: str
    """A part of the message."""
    change: Spec
    before: Spec = field(default_factory=dict)
    name: str = "refused"


def rules() -> list[Rule]:
    """Return every CEL rule of the schema once. The two kinds of pod share theirs."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: dict[int, Rule] = {}

    def collect(node: Mapping[str, Any], path: str) -> None:
        for rule in node.get("x-kubernetes-validations", ()):
            found.setdefault(id(rule), Rule(path or WHOLE, rule["message"]))
        for name, inner in node.get("properties", {}).items():
            collect(inner, f"{path}.{name}" if path else name)
        if "items" in node:
            collect(node["items"], f"{path}[0]")

    collect(version["schema"]["openAPIV3Schema"], "")
    return list(found.values())


def merged(old: Spec, new: Spec) -> Spec:
    result = copy.deepcopy(old)
    for name, value in new.items():
        inner = result.get(name)
        result[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result
