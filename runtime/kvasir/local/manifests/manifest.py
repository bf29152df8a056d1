"""Read a manifest for `kvasir up`: InferenceServices, with the CRD's checks and defaults, and Secrets.

One pass finds all problems, and one ManifestError has a line for each.
"""

import base64
import binascii
import re
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kvasir.config.options import ConfigError
from kvasir.local.manifests.crd_schema import CRDSchema, SchemaProblem, suggestion
from kvasir_contract.api import API_VERSION, KIND
from kvasir_operator.spec import InferenceService, parse_service
from kvasir_operator.spec_values import InvalidSpec

_SECRET_FIELDS = ("apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData")
_SECRET_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
MAX_SECRET_KEY_CHARACTERS: Final = 253
STANDARD_INPUT: Final = Path("-")


class ManifestError(ConfigError):
    """A manifest cannot be run; one line per problem."""


@dataclass
class Manifest:
    services: list[InferenceService] = field(default_factory=list)
    # In the order of the services, with defaults.
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    # Decoded, by name of the Secret and key.
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)


def read_manifest(path: Path) -> Manifest:
    """Read a file, or standard input if the path is `-`. Raises ManifestError."""
    is_input = path == STANDARD_INPUT
    name = "standard input" if is_input else str(path)
    try:
        text = (sys.stdin.buffer.read() if is_input else path.read_bytes()).decode()
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except OSError as error:
        raise ManifestError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{name}: not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{name}: not YAML: {_yaml_problem(error)}") from error
    reader = _Reader()
    for document in documents:
        reader.read(document)
    if not reader.manifest.services and not reader.problems:
        reader.problems.append("there is no InferenceService in it")
    if reader.problems:
        lines = [f"{name}: {problem}" for problem in reader.problems]
        raise ManifestError("\n".join(lines if len(lines) == 1 else [f"{len(lines)} problems", *lines]))
    return reader.manifest


class _Reader:
    def __init__(self) -> None:
        self.manifest = Manifest()
        self.problems: list[str] = []
        self._schema = CRDSchema.of_crd()
        self._seen: set[tuple[str, str]] = set()
        self._read: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
            KIND: self._service,
            "Secret": self._secret,
        }

    def read(self, document: Any) -> None:
        if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
            self.problems.append("a document is not a Kubernetes object: it has no kind")
            return
        kind = document["kind"]
        title = f"{kind} {_name_of(document)}"
        if kind not in self._read:
            self._report(
                title,
                [
                    SchemaProblem(
                        "kind", f"kvasir up runs InferenceServices, with the Secrets they name; {kind} is neither"
                    )
                ],
            )
            return
        if (kind, title) in self._seen:
            self._report(title, [SchemaProblem("metadata.name", "there is another one of this name")])
        self._seen.add((kind, title))
        self._read[kind](title, document)

    def _service(self, title: str, document: Mapping[str, Any]) -> None:
        if document.get("apiVersion") != API_VERSION:
            self._report(
                title, [SchemaProblem("apiVersion", f"must be {API_VERSION}, not {document.get('apiVersion')}")]
            )
            return
        completed, problems = self._schema.complete(document)
        if problems:
            self._report(title, problems)
            return
        try:
            service = parse_service(completed)
        except InvalidSpec as error:
            self._report(title, [SchemaProblem("", str(error))])
            return
        self.manifest.resources.append(completed)
        self.manifest.services.append(service)

    def _secret(self, title: str, document: Mapping[str, Any]) -> None:
        problems = [
            SchemaProblem(name, "unknown field" + suggestion(name, _SECRET_FIELDS))
            for name in document
            if name not in _SECRET_FIELDS
        ]
        values: dict[str, str] = {}
        for name, decode in (("data", _decode_base64), ("stringData", str)):
            entries = document.get(name) or {}
            if not isinstance(entries, Mapping):
                problems.append(SchemaProblem(name, "must be an object with fields"))
                continue
            for key, value in entries.items():
                if fault := _secret_key_fault(key):
                    problems.append(SchemaProblem(name, f"the key {key[:100]!r} {fault}"))
                    continue
                if not isinstance(value, str):
                    problems.append(SchemaProblem(f"{name}.{key}", "must be a string"))
                    continue
                try:
                    values[key] = decode(value)
                except ValueError:
                    problems.append(
                        SchemaProblem(f"{name}.{key}", "must be text in base64; plain text goes to stringData")
                    )
        if _name_of(document) == _NO_NAME:
            problems.append(SchemaProblem("metadata", "name is required"))
        self._report(title, problems)
        self.manifest.secrets[_name_of(document)] = values

    def _report(self, title: str, problems: list[SchemaProblem]) -> None:
        self.problems += (f"{title}: {problem}" for problem in problems)


def _secret_key_fault(key: str) -> str | None:
    # A key is the name of a file when the Secret is mounted.
    if len(key) > MAX_SECRET_KEY_CHARACTERS:
        return f"has {len(key)} characters; at most {MAX_SECRET_KEY_CHARACTERS}"
    if not _SECRET_KEY.fullmatch(key):
        return "must consist of letters, digits, '-', '_' and '.'"
    if key == "." or key.startswith(".."):
        return "must not be '.' and must not start with '..'"
    return None


_NO_NAME = "(without a name)"


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and name else _NO_NAME


def _decode_base64(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: no dates, no key twice, string keys only."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (the base class declares it so)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} is not a string", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
