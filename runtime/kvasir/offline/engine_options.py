"""Options of `LLM`: those of `kvasir engine` and of vLLM's `LLM`, as keyword arguments with underscores.

config/vllm/verdicts.py has the verdicts on vLLM's options.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvasir.config.advice import for_option
from kvasir.config.chat_settings import ChatConfig
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.options import ConfigError, flag_of, from_values, names_of
from kvasir.config.parsers import parse_json_object
from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from kvasir.config.vllm.arguments import advice_for_options, at_revision, taken
from kvasir.config.vllm.given_options import SPECULATION_FIELDS, GivenOption, vllm_options
from kvasir.config.vllm.verdicts import READ, REFUSED

log = logging.getLogger(__name__)

SECTIONS: Final = (DeviceConfig, CacheConfig, SchedulerConfig, ExecutorConfig, LoRAConfig)
NOT_OF_THE_MODEL: Final = ("served_model_name",)
_OF_CHATS: Final = ("chat_template", "chat_template_content_format", "default_chat_template_kwargs")
_NAMES: Final = (
    *(name for name in names_of(ModelConfig) if name not in NOT_OF_THE_MODEL),
    *(name for section in SECTIONS for name in names_of(section)),
    *_OF_CHATS,
)
_REVISIONS: Final = ("revision", "tokenizer_revision")
_FLAGS: Final = frozenset(map(flag_of, _NAMES))
_PYTHON_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {"data_parallel_size": (1,), "hf_token": (True, False)}
_PYTHON_REFUSED: Final = {
    "data_parallel_size": "is 1, because an LLM has one engine: start an LLM in each of several processes",
    "hf_token": "is not an argument: set the variable HF_TOKEN of the environment",
}
_FLAG: Final = re.compile(r"--(?:no-)?([a-z][a-z0-9-]*[a-z0-9])")


@dataclass(frozen=True)
class LLMOptions:
    engine: EngineConfig
    chats: ChatConfig
    has_metrics: bool


def read_options(model: str, options: Mapping[str, Any]) -> LLMOptions:
    """Return the settings of an LLM, and log options of vLLM that change nothing. Raises ConfigError."""
    options = _with_speculation(options)
    has_metrics = options.pop("disable_log_stats", None) is False
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name in _REVISIONS or (value is None and (name in _NAMES or flag_of(name) in vllm_options())):
            continue
        if (used := _used(name, value)) is not None:
            values[used] = value.__name__ if isinstance(value, type) else value
    source = _at(model, options.get("revision"))
    if "tokenizer" in values:
        values["tokenizer"] = _at(values["tokenizer"], options.get("tokenizer_revision"))
    config = EngineConfig(
        model=from_values(ModelConfig, values, source=source),
        device=from_values(DeviceConfig, values),
        cache=from_values(CacheConfig, values),
        scheduler=from_values(SchedulerConfig, values),
        executor=from_values(ExecutorConfig, values),
        lora=from_values(LoRAConfig, values),
    )
    chats = from_values(ChatConfig, values, trust_request_chat_template=True)
    return LLMOptions(config, chats, has_metrics)


def _with_speculation(options: Mapping[str, Any]) -> dict[str, Any]:
    fields = {flag.removeprefix("--").replace("-", "_"): field for flag, field in SPECULATION_FIELDS.items()}
    given = {field: options[name] for name, field in fields.items() if options.get(name) is not None}
    rest = {name: value for name, value in options.items() if name not in fields}
    if not given:
        return rest
    config = rest.get("speculative_config") or {}
    try:
        config = json.loads(parse_json_object(config if isinstance(config, str) else json.dumps(config)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"speculative_config: {error}") from None
    return {**rest, "speculative_config": {**config, **given}}


@contextmanager
def python_names() -> Iterator[None]:
    # Options are keyword arguments here.
    try:
        yield
    except ConfigError as error:
        error.args = (in_python(str(error)),)
        raise


def in_python(text: str) -> str:
    def name_of(match: re.Match[str]) -> str:
        is_known = {match[0], "--" + match[1]} & {*_FLAGS, *vllm_options()}
        return match[0][2:].replace("-", "_") if is_known else match[0]

    return _FLAG.sub(name_of, text)


def _used(name: str, value: object) -> str | None:
    # None: the value changes nothing.
    flag = flag_of(name)
    if flag not in _FLAGS and flag not in vllm_options():
        raise ConfigError(f"LLM has no option {name}{for_option(flag, _FLAGS, advice_for_options())}")
    if name == "compilation_config" and isinstance(value, int):
        flag = "--optimization-level"
    if callable(value) and not isinstance(value, type):
        raise ConfigError(f"LLM: {name} is a function, which is not supported: give a value")
    ignored: list[str] = []
    try:
        found = taken(_given(flag, value), _FLAGS, ignored)
    except ValueError as error:
        if value in _PYTHON_NEUTRAL.get(name, ()):
            return None
        if value in ({}, [], ""):  # such as speculative_config={}: it asks for nothing
            log.warning("LLM: %s=%r has no effect", name, value)
            return None
        if name in _PYTHON_REFUSED:
            raise ConfigError(f"LLM: {name} {_PYTHON_REFUSED[name]}") from None
        if flag in REFUSED or flag in READ:
            raise ConfigError(f"LLM: {error}") from None
        log.warning("LLM: %s has no effect: an LLM has no server", name)  # the value may be a secret
        return None
    for note in ignored:
        if value not in (False, [], {}):
            log.warning("LLM: %s=%r%s", name, value, in_python(note[note.index(" has no effect") :]))
    return None if found is None else found.name.removeprefix("--").replace("-", "_")


def _given(flag: str, value: object) -> GivenOption:
    if value is True or value is False:
        return GivenOption(flag if value else "--no-" + flag[2:]) if flag not in _FLAGS else GivenOption(flag)
    if isinstance(value, list | dict | tuple):
        return GivenOption(flag, (json.dumps(value, default=str),))
    return GivenOption(flag, (f"{value:g}" if isinstance(value, float) else str(value),))


def _at(source: str, revision: object) -> str:
    return source if revision is None else at_revision(source, str(revision))
