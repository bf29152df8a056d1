"""Apply the CRD's own schema as the API server does: unknown fields, defaults, types, bounds and CEL rules.

Only the keywords that crds/ uses are known here; a test compares them.
"""

import difflib
import importlib.resources
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kvasir.local.manifests.cel_rules import RuleError, Rules
from kvasir_contract.api import CRD_NAME

Node = Mapping[str, Any]

_ANYTHING: Node = {"x-kubernetes-preserve-unknown-fields": True}
_STRINGS: Node = {"type": "object", "additionalProperties": {"type": "string"}}
_READ_ONLY = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
)
# The API server checks metadata without a schema.
METADATA: Node = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "namespace": {"type": "string"},
        "labels": _STRINGS,
        "annotations": _STRINGS,
        **dict.fromkeys(_READ_ONLY, _ANYTHING),
    },
}


@dataclass(frozen=True)
class SchemaProblem:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class CRDSchema:
    """Checks objects and fills in defaults by one structural schema."""

    def __init__(self, root: Node) -> None:
        self._root: Node = {
            **root,
            "required": ["metadata", *root.get("required", ())],
            "properties": {**root["properties"], "metadata": METADATA},
        }
        self._rules = Rules()

    @classmethod
    def of_crd(cls, name: str = CRD_NAME) -> "CRDSchema":
        crd = yaml.safe_load(_crd_file(name).read_text(encoding="utf-8"))
        return cls(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])

    def complete(self, resource: Mapping[str, Any]) -> tuple[dict[str, Any], list[SchemaProblem]]:
        """Return a copy of the resource with all defaults, and its problems."""
        problems: list[SchemaProblem] = []
        completed = self._object(dict(resource), self._root, "", problems)
        return completed, problems

    def _value(self, value: Any, node: Node, path: str, problems: list[SchemaProblem]) -> Any:
        before = len(problems)
        if problem := _type_problem(value, node):
            problems.append(SchemaProblem(path, problem))
            return value
        if isinstance(value, Mapping) and node.get("type") == "object":
            return self._object(value, node, path, problems)
        if isinstance(value, list) and "items" in node:
            value = [self._value(v, node["items"], f"{path}[{i}]", problems) for i, v in enumerate(value)]
        problems += (SchemaProblem(path, message) for message in _bound_problems(value, node))
        self._ask_rules(value, node, path, problems, before)
        return value

    def _object(
        self, value: Mapping[str, Any], node: Node, path: str, problems: list[SchemaProblem]
    ) -> dict[str, Any]:
        before = len(problems)
        fields = node.get("properties", {})
        given = {
            name: item
            for name, item in _with_defaults(value, fields).items()
            if item is not None or name not in fields  # null is absent, as it is for the API server
        }
        for name in node.get("required", ()):
            if name not in given:
                problems.append(SchemaProblem(path, f"{name} is required"))
        completed: dict[str, Any] = {}
        for name, item in given.items():
            inner = fields.get(name, node.get("additionalProperties"))
            where = f"{path}.{name}" if path else name
            if inner is not None:
                completed[name] = self._value(item, inner, where, problems)
            elif node.get("x-kubernetes-preserve-unknown-fields"):
                completed[name] = item
            else:
                problems.append(SchemaProblem(where, "unknown field" + suggestion(name, fields)))
        problems += (SchemaProblem(path, message) for message in _bound_problems(completed, node))
        self._ask_rules(completed, node, path, problems, before)
        return completed

    def _ask_rules(self, value: Any, node: Node, path: str, problems: list[SchemaProblem], before: int) -> None:
        # A rule that fails only because of an earlier problem is skipped.
        try:
            messages = list(self._rules.broken(value, node))
        except RuleError:
            if len(problems) == before:
                raise
            return
        if not isinstance(value, Mapping | list):  # the API server shows such a value too
            messages = [f"{message}, not {value!r}" for message in messages]
        problems += (SchemaProblem(path, message) for message in messages)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the name that was meant, or the known ones."""
    known = list(known)
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    if close:
        return f"; did you mean {lowered[close[0]]}?"
    return f"; there are {', '.join(known)}" if known else ""


def _crd_file(plural: str) -> Path:
    # Package data of an installed Kvasir; in a checkout, the file itself.
    package = Path(str(importlib.resources.files("kvasir_operator")))
    installed = package / "crds" / f"{plural}.yaml"
    return installed if installed.exists() else package.parents[1] / "crds" / f"{plural}.yaml"


def _with_defaults(value: Mapping[str, Any], fields: Mapping[str, Node]) -> dict[str, Any]:
    defaults = {
        name: node["default"] for name, node in fields.items() if "default" in node and value.get(name) is None
    }
    return {**value, **defaults}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "integer": ("a whole number", _is_integer),
    "number": ("a number", lambda v: _is_integer(v) or (isinstance(v, float) and math.isfinite(v))),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "object": ("an object with fields", lambda value: isinstance(value, Mapping)),
}


def _type_problem(value: Any, node: Node) -> str | None:
    if node.get("x-kubernetes-int-or-string"):
        if isinstance(value, str) or _is_integer(value):
            return None
        return f"must be a whole number or a string, not {_shown(value)}"
    if "type" not in node:
        return None
    wanted, is_type = _TYPES[node["type"]]
    return None if is_type(value) else f"must be {wanted}, not {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return "a list"
    return "an object with fields" if isinstance(value, Mapping) else str(value)


def _bound_problems(value: Any, node: Node) -> Iterable[str]:
    if "enum" in node and value not in node["enum"]:
        yield f"{value!r} is not one of {', '.join(map(str, node['enum']))}"
    if isinstance(value, str):
        yield from _size_problems(len(value), node, "Length", "characters")
        if "pattern" in node and not re.search(node["pattern"], value):
            yield f"{value!r} is not of the form {node['pattern']}{_example(node['pattern'])}"
    elif isinstance(value, list):
        yield from _size_problems(len(value), node, "Items", "items")
        yield from _repeated(value, node)
    elif isinstance(value, Mapping):
        yield from _size_problems(len(value), node, "Properties", "fields")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < node.get("minimum", value):
            yield f"{value} is too small: at least {node['minimum']}"
        if value > node.get("maximum", value):
            yield f"{value} is too large: at most {node['maximum']}"


# Values for the patterns of sizes, quantities and durations, by the end of the pattern.
_EXAMPLES: Final = {
    "(k|M|G|T|Ki|Mi|Gi|Ti)?$": "512Mi or 4Gi",
    "[eE][+-]?[0-9]+)?$": "2, 500m or 4Gi",
    "[mh])+$": "30s, 10m or 1h30m",
}


def _example(pattern: str) -> str:
    return next((f", such as {text}" for end, text in _EXAMPLES.items() if pattern.endswith(end)), "")


def _size_problems(size: int, node: Node, keyword: str, unit: str) -> Iterable[str]:
    if size < node.get(f"min{keyword}", 0):
        yield f"has {size} {unit}; at least {node[f'min{keyword}']}"
    if size > node.get(f"max{keyword}", size):
        yield f"has {size} {unit}; at most {node[f'max{keyword}']}"


def _repeated(items: list[Any], node: Node) -> Iterable[str]:
    # Lists that are sets have no item twice; those that are maps have no keys twice.
    kind = node.get("x-kubernetes-list-type")
    if kind == "set":
        names = [str(item) for item in items]
    elif kind == "map":
        keys = node["x-kubernetes-list-map-keys"]
        names = [", ".join(str(i.get(key)) for key in keys) for i in items if isinstance(i, Mapping)]
    else:
        return
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} is there more than once"
