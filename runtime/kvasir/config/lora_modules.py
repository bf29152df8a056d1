"""LoRA adapters as `--lora-modules` and `--lora-modules-file` name them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir.config.options import ConfigError

MAX_FILE_BYTES: Final = 2**20  # more than a ConfigMap holds
_FORMS: Final = 'give NAME=SOURCE, or JSON such as {"name": "sql", "path": "hf://org/sql-lora"}'
_SOURCES: Final = ("path", "source")
_KNOWN: Final = frozenset({"name", *_SOURCES, "base_model_name"})


@dataclass(frozen=True)
class LoraModule:
    name: str
    source: str  # as the user wrote it
    parent: str | None = None  # None: the first name of the model


def parse_lora_module(text: str) -> str:
    """Check the text, and return it unchanged: settings become arguments again. Raises ValueError."""
    lora_module(text)
    return text


def lora_module(text: str) -> LoraModule:
    """Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{text!r} is not JSON ({error}): {_FORMS}") from None
        return module_of(fields)
    name, separator, source = text.partition("=")
    if not separator or not name.strip() or not source.strip():
        raise ValueError(f"{text!r} does not name a LoRA adapter: {_FORMS}")
    return LoraModule(name.strip(), source.strip())


def module_of(fields: Any) -> LoraModule:
    """Return the adapter of a JSON object. Raises ValueError."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"{fields!r} is not a JSON object: {_FORMS}")
    if unknown := sorted(map(str, fields.keys() - _KNOWN)):
        raise ValueError(f"a LoRA adapter has no field {unknown[0]!r}: {_FORMS}")
    name, parent = fields.get("name"), fields.get("base_model_name")
    source = next((fields[key] for key in _SOURCES if fields.get(key)), None)
    if not all(isinstance(each, str) and each.strip() for each in (name, source)):
        raise ValueError(f"{json.dumps(fields)} lacks a name or a path: {_FORMS}")
    if not isinstance(parent, str | None):
        raise ValueError(f"base_model_name is not a text: {_FORMS}")
    return LoraModule(str(name), str(source), parent or None)


def read_modules_file(content: bytes, path: Path) -> tuple[LoraModule, ...]:
    """Return the adapters of a file with a JSON list. Raises ConfigError."""
    try:
        entries = json.loads(content)
        if not isinstance(entries, list):
            raise ValueError("it is not a list")
        modules = tuple(map(module_of, entries))
    except (ValueError, RecursionError) as error:
        example = '[{"name": "sql", "source": "hf://org/sql-lora"}]'
        raise ConfigError(f"{path} is not a list of LoRA adapters ({error}): write one such as {example}") from None
    check_names(modules, ())
    return modules


def check_names(modules: tuple[LoraModule, ...], served_names: tuple[str, ...]) -> None:
    """Raise ConfigError for a name that another adapter or the model has."""
    seen = set(served_names)
    for module in modules:
        if module.name in served_names:
            raise ConfigError(
                f"the LoRA adapter {module.name} has a name of the model: rename it, or set --served-model-name"
            )
        if module.name in seen:
            raise ConfigError(f"two LoRA adapters have the name {module.name}: rename one of them")
        seen.add(module.name)
