"""Split a command line into options with their values, as vLLM reads it, and other words."""

import argparse
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LIST: Final = Path(__file__).with_name("options.json")
# Options of releases before 0.11.0 that programs still give → the values of each.
_OLDER: Final = {
    **dict.fromkeys(("max-seq-len-to-capture", "num-scheduler-steps", "preemption-mode"), "value"),
    **dict.fromkeys(("guided-decoding-backend", "tokenizer-pool-size"), "value"),
    **dict.fromkeys(("use-v2-block-manager", "disable-async-output-proc", "worker-use-ray"), "nothing"),
    "multi-step-stream-outputs": "switch",
}
_LEVEL: Final = re.compile(r"-O(\.[\w.]+)?(?:=?(.*))")
_SWITCHES: Final = ("nothing", "switch")
_OPTIMIZATION: Final = "--optimization-level"
_COMPILATION: Final = "--compilation-config"
SPECULATION: Final = "--speculative-config"
# Options with a name of their own → fields of --speculative-config.
SPECULATION_FIELDS: Final[Mapping[str, str]] = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


@dataclass(frozen=True)
class GivenOption:
    name: str
    """The long name, with dashes."""
    values: tuple[str, ...] = ()

    def words(self) -> list[str]:
        if len(self.values) == 1 and self.values[0].startswith("-"):
            return [f"{self.name}={self.values[0]}"]
        return [self.name, *self.values]


Word = str | GivenOption


@functools.cache
def vllm_options() -> Mapping[str, dict[str, Any]]:
    """Return the facts about each option of `vllm serve`, by its name."""
    options: dict[str, dict[str, Any]] = {"--" + name: {"short": [], "takes": _OLDER[name]} for name in _OLDER}
    options |= json.loads(_LIST.read_text())
    return options


@functools.cache
def _long_names() -> Mapping[str, str]:
    return {short: name for name, facts in vllm_options().items() for short in facts["short"]}


def split_words(words: Sequence[str], own: Mapping[str, argparse.Action]) -> list[Word]:
    """Return the options, with their values, and the other words in their order. `own`: a parser's options.

    An option that neither vLLM nor the parser has is a word. Raises ValueError.
    """
    result: list[Word] = []
    nested: dict[str, dict[str, Any]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*_with_nested(result, nested), word, *rest]
        if level := _LEVEL.fullmatch(word):
            word, rest = _of_level(level, rest)
        if not word.startswith("-"):
            result.append(word)
            continue
        head, inline, value = word.partition("=")
        name, path = _name_of(head, own)
        takes = "value" if path else _takes(name, own)
        if not takes:
            result.append(name + inline + value)
            continue
        if inline and takes in _SWITCHES:
            raise ValueError(f"{name} takes no value, and got {value!r}")
        values = [value] if inline else _taken(takes, rest, own)
        if path and values:
            _set(nested.setdefault(name, {}), path, values[0])
        else:
            result.append(GivenOption(name, tuple(values)))
    return _with_nested(result, nested)


def _of_level(level: re.Match[str], rest: list[str]) -> tuple[str, list[str]]:
    # -O3, -O 3, -O.field VALUE and -O '{…}' have a long name.
    path, value = level[1], level[2]
    if path:
        return f"{_COMPILATION}{path}" + (f"={value}" if value else ""), rest
    if not value and rest and re.match(r"\d|\{", rest[0]):
        value, rest = rest[0], rest[1:]
    return f"{_COMPILATION if value.startswith('{') else _OPTIMIZATION}={value}", rest


def _name_of(head: str, own: Mapping[str, argparse.Action]) -> tuple[str, list[str]]:
    """Return the long name with dashes, and the names of nested fields."""
    name, *path = head.split(".")
    if name.startswith("--"):
        name = name.replace("_", "-")
    if name not in own:
        name = _long_names().get(name, name) if not name.startswith("--") else name
    if name in SPECULATION_FIELDS and SPECULATION in own:
        return SPECULATION, [SPECULATION_FIELDS[name]]
    return name, path


def _takes(name: str, own: Mapping[str, argparse.Action]) -> str:
    """Return the kind of values as options.json writes it; "" for an unknown option."""
    if name in own:
        kinds = {None: "value", 0: "nothing", "?": "optional", "+": "values", "*": "values"}
        return kinds.get(own[name].nargs, "value")
    if facts := vllm_options().get(name):
        return str(facts["takes"])
    positive = vllm_options().get("--" + name.removeprefix("--no-"))
    return "nothing" if positive and positive["takes"] == "switch" else ""


def _taken(takes: str, rest: list[str], own: Mapping[str, argparse.Action]) -> list[str]:
    """Remove and return the values of an option from the words after it."""
    if takes in _SWITCHES:
        return []
    if takes in ("value", "repeated"):
        return [rest.pop(0)] if rest and not _is_option(rest[0], own) else []
    values: list[str] = []
    while rest and not rest[0].startswith("-") and not (values and takes == "optional"):
        values.append(rest.pop(0))
    return values


def _is_option(word: str, own: Mapping[str, argparse.Action]) -> bool:
    # A word such as -5 is a value.
    return word.startswith("--") and bool(_takes(_name_of(word.partition("=")[0], own)[0], own))


def _set(fields: dict[str, Any], path: list[str], text: str) -> None:
    # With a + at the end of its name, a field gets further entries of a list.
    *outer, last = path
    for name in outer:
        inner = fields.get(name)
        fields[name] = inner if isinstance(inner, dict) else {}
        fields = fields[name]
    if last.endswith("+"):
        entries = fields.get(last[:-1])
        fields[last[:-1]] = (entries if isinstance(entries, list) else []) + text.split(",")
    else:
        fields[last] = _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_nested(words: list[Word], nested: Mapping[str, dict[str, Any]]) -> list[Word]:
    # A field given by itself replaces that of an object.
    result = list(words)
    for name, fields in nested.items():
        whole: dict[str, Any] = {}
        for word in words:
            if isinstance(word, GivenOption) and _long_names().get(word.name, word.name) == name and word.values:
                value = _value(word.values[0])
                whole = value if isinstance(value, dict) else {}
        result.append(GivenOption(name, (json.dumps(whole | fields),)))
    return result
