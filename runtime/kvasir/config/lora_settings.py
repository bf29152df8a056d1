"""LoRA adapters: how many engines hold, and those that `--lora-modules` and `--lora-modules-file` name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int

MAX_LORA_RANK: Final = 512
ADAPTERS_IN_MEMORY: Final = 32
ADAPTERS_SHARE: Final = 8  # of an engine's memory limit: one byte in so many
MAX_NAME_CHARACTERS: Final = 256
MAX_FILE_BYTES: Final = 2**20  # more than a ConfigMap holds
_FORMS: Final = 'give NAME=SOURCE, or JSON such as {"name": "sql", "path": "hf://org/sql-lora"}'
_SOURCES: Final = ("path", "source")
_KNOWN: Final = frozenset({"name", *_SOURCES, "base_model_name"})


@dataclass(frozen=True)
class LoRAConfig:
    enable_lora: bool = option(False, "accept requests for LoRA adapters of the model")
    max_loras: int = option(4, "most adapters in a step; the requests of others wait", parse=parse_int(1, 256))
    max_lora_rank: int = option(
        16, "highest rank of an adapter; a GPU reserves memory for it", parse=parse_int(1, MAX_LORA_RANK)
    )
    max_cpu_loras: int | None = option(
        None,
        "most adapters in memory, --max-loras or more; the least recently used makes room, also when all take an "
        "eighth of the memory limit [default: 32, or --max-loras]",
        parse=parse_int(1, 65536),
    )

    def __post_init__(self) -> None:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"--max-cpu-loras {self.max_cpu_loras} is below --max-loras {self.max_loras}: adapters in a step "
                "are in memory too"
            )

    def check(self, pools: bool, nnodes: int, backend: str | None) -> None:
        """Raise ConfigError for an engine without adapters. `pools`: it makes vectors; `backend`: of workers."""
        unsupported = {
            "a model that makes vectors or scores": pools,
            f"--nnodes {nnodes}": nnodes > 1,  # other nodes have no file of the adapter
            f"--distributed-executor-backend {backend}": backend not in (None, "uni", "mp"),
        }
        for what, given in unsupported.items():
            if self.enable_lora and given:
                raise ConfigError(f"--enable-lora is not supported for {what}: leave it out")

    @property
    def num_in_memory(self) -> int:
        return self.max_cpu_loras or max(self.max_loras, ADAPTERS_IN_MEMORY)


@dataclass(frozen=True)
class LoraModule:
    """Raises ValueError for a name that log lines and answers cannot show."""

    name: str
    source: str  # as the user wrote it
    parent: str | None = None  # None: the first name of the model

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not 0 < len(self.name) <= MAX_NAME_CHARACTERS:
            raise ValueError(
                f"the name of a LoRA adapter is {self.name[:MAX_NAME_CHARACTERS]!r}: give up to "
                f"{MAX_NAME_CHARACTERS} printable characters"
            )


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
    check_names(modules)
    return modules


def check_names(modules: tuple[LoraModule, ...]) -> None:
    """Raise ConfigError for a name that two adapters have."""
    names: set[str] = set()
    for module in modules:
        if module.name in names:
            raise ConfigError(f"two LoRA adapters have the name {module.name}: rename one of them")
        names.add(module.name)


@dataclass(frozen=True)
class AdaptersConfig:
    """LoRA adapters that requests may name."""

    lora_modules: tuple[str, ...] = option(
        (),
        "LoRA adapters of the model, each as NAME=SOURCE or as vLLM's JSON object with name and path; requests use "
        "NAME as their model [default: none]",
        many=True,
        parse=parse_lora_module,
        metavar="ADAPTER",
    )
    lora_modules_file: str | None = option(
        None,
        "JSON file with a list of LoRA adapters, objects with name and source; read again when it changes",
        metavar="FILE",
        never_blank=True,
    )
    allow_runtime_lora_updating: bool = option(
        False,
        "let every client load and unload LoRA adapters with POST /v1/load_lora_adapter, which needs a key of "
        "--admin-api-key otherwise",
    )

    @property
    def modules(self) -> tuple[LoraModule, ...]:
        return tuple(map(lora_module, self.lora_modules))

    @property
    def any_named(self) -> bool:
        """Return whether requests may name adapters, now or later."""
        named = bool(self.lora_modules) or self.lora_modules_file is not None
        return named or self.allow_runtime_lora_updating

    def __post_init__(self) -> None:
        check_names(self.modules)
        if self.lora_modules and self.lora_modules_file is not None:
            raise ConfigError("--lora-modules and --lora-modules-file name adapters: give one of the two")
