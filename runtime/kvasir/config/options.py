"""Command-line options from frozen dataclasses: names, help, environment and precedence in one place.

A config class lists its fields with `option(...)`; `add_options` makes argparse arguments of them, and `from_args`
the frozen object. A value comes from the argument, else from the environment (`--max-num-seqs` ↔
KVASIR_MAX_NUM_SEQS), else from the default. None stands for auto (resolve.py).
"""

import argparse
import dataclasses
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

from kvasir.config import advice, help_search
from kvasir.config.parsers import argument_type, parse_bool, parse_int, parse_number, parse_tokens
from kvasir.config.vllm.arguments import advice_for_options, rewrite
from kvasir.config.vllm.config_file import place_in_file
from kvasir.config.vllm.variables import value_for
from kvasir_contract.environment import PREFIX
from kvasir_contract.exits import ExitCode
from kvasir_contract.reasons import Reason
from kvasir_contract.units import parse_duration

Config = TypeVar("Config")


class ConfigError(ValueError):
    """A setting cannot be used. The message names it and the accepted values."""

    # Of a process that exits with this error.
    reason: ClassVar[Reason] = Reason.INVALID_SPEC


class UsageError(SystemExit):
    """The command line cannot be parsed. The message has been printed already."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USER_ERROR)
        self.message = message


class CommandFailed(Exception):
    """A command failed for another reason than a setting, such as an unreachable server."""


class OptionParser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, with one-line errors and suggestions, and exit code 2."""

    takes_vllm: bool = False
    """Read the words of `vllm serve` too, and leave a sentence in `notes` for each option without effect."""
    _words: Sequence[str] = ()
    _given: Sequence[str] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = self._given = list(args or ())
        notes: list[str] = []
        if asked := next((word for word in self._words if word.startswith("--help=")), None):
            self._chosen()._help_about(asked.removeprefix("--help="))
        if self.takes_vllm:
            try:
                rewritten = rewrite(self._words, self._option_string_actions)
            except ValueError as error:
                self.error(str(error))
            self._words, notes = rewritten.words, rewritten.notes
        parsed, rest = super().parse_known_args(self._words, namespace)
        if self.takes_vllm:
            parsed.notes = notes
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse drops the error: a full disk would look like success.
        if message:
            (file or sys.stderr).write(message)

    def _help_about(self, word: str) -> NoReturn:
        try:
            self._print_message(help_search.text_about(self, word), sys.stdout)
        except LookupError as error:
            self.error(str(error))
        self.exit()

    def error(self, message: str) -> NoReturn:
        chosen = self._chosen()
        text = message + chosen._advice(message)
        if chosen.takes_vllm:
            text += place_in_file(self._given, message)
        print(f"{chosen.prog}: {text}\nSee {chosen.prog} --help.", file=sys.stderr)
        raise UsageError(text)

    def _chosen(self) -> "OptionParser":
        # argparse reports unknown options of a sub-command through the parent.
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return next((action.choices[word] for word in self._words if word in action.choices), self)
        return self

    def _advice(self, message: str) -> str:
        if unknown := re.search(r"unrecognized arguments: (-[\w-]+)", message):
            elsewhere = advice_for_options() if self.takes_vllm else {}
            return advice.for_option(unknown[1], list(self._option_string_actions), elsewhere)
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            close = difflib.get_close_matches(choice[1], re.findall(r"[\w-]+", choice[2]), n=1)
            return f" (did you mean {close[0]}?)" if close else ""
        if "argument -h/--help: ignored explicit argument 'f'" in message:
            return " (-hf is an option of llama.cpp: give the model as hf://org/name)"
        many = [name for name, action in self._option_string_actions.items() if action.nargs == "+"]
        return advice.for_missing(self._words, many) if "are required" in message else ""


def option(
    default: Any,
    help: str,
    *,
    parse: Callable[[str], Any] = str,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    many: bool = False,
    never_blank: bool = False,
    short: str | None = None,
    aliases: Sequence[str] = (),
) -> Any:
    """Return a dataclass field that is also a command-line option.

    `many`: one or more values, with commas in the environment, as a tuple. A bool default makes a pair of flags,
    --x and --no-x. `never_blank`: reject an environment variable that is set and empty, which counts as unset
    otherwise. `short`: a second flag. `aliases`: flags of other programs with the same meaning.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "parse": parse,
            "choices": choices,
            "metavar": metavar,
            "many": many,
            "never_blank": never_blank,
            "short": short,
            "aliases": aliases,
        },
    )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def names_of(config: type[Any]) -> list[str]:
    return [field.name for field in _options(config)]


def add_options(
    parser: argparse.ArgumentParser, config: type[Any], title: str, without: Collection[str] = ()
) -> None:
    """Add the options of the config class as a group under this title."""
    group = parser.add_argument_group(title)
    for field in _options(config):
        if field.name in without:
            continue
        meta = field.metadata
        text = _help_of(field)
        flag = flag_of(field.name)
        if _is_switch(field):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
            continue
        group.add_argument(
            *([meta["short"]] if meta["short"] else []),
            flag,
            *meta["aliases"],
            dest=field.name,
            default=None,
            type=argument_type(meta["parse"]),
            choices=meta["choices"],
            metavar=_metavar_of(field),
            nargs="+" if meta["many"] else None,
            help=text,
        )


def from_args(
    config: type[Config], args: argparse.Namespace, environ: Mapping[str, str] = os.environ, **fixed: Any
) -> Config:
    """Build the config object from arguments, the environment and defaults.

    `fixed` sets fields that are not options. Raises ConfigError for a bad variable or a contradiction.
    """
    values: dict[str, Any] = dict(fixed)
    for field in _options(config):
        if field.name in fixed:
            continue
        value = getattr(args, field.name, None)
        if value is None:
            value = _from_environment(field, environ)
        if value is not None:
            values[field.name] = tuple(value) if field.metadata["many"] else value
    return config(**values)


def is_given(name: str, args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> bool:
    return getattr(args, name, None) is not None or bool(environ.get(variable_of(name)))


def from_values(config: type[Config], values: Mapping[str, object], **fixed: Any) -> Config:
    """Build the config object from Python values by the names of its options; None is the default.

    `fixed` sets fields that are not options. Raises ConfigError for a bad value or a contradiction.
    """
    checked: dict[str, Any] = dict(fixed)
    for field in _options(config):
        if (value := values.get(field.name)) is not None:
            checked[field.name] = _checked(field, value)
    return config(**checked)


def _checked(field: dataclasses.Field[Any], value: object) -> Any:
    # The parser of the option reads numbers as text too.
    meta = field.metadata
    if _is_switch(field):
        if not isinstance(value, bool):
            raise ConfigError(f"{field.name}: {value!r} is not a boolean: give True or False")
        return value
    if isinstance(value, bool):
        raise ConfigError(f"{field.name} takes a value, and got {value}")
    try:
        parsed = meta["parse"](json.dumps(value) if isinstance(value, dict) else str(value))
    except (ValueError, TypeError) as error:  # TypeError: of a dict that JSON cannot have
        raise ConfigError(f"{field.name}: {error}") from error
    if meta["choices"] and parsed not in meta["choices"]:
        raise ConfigError(f"{field.name}: {parsed!r} is not one of {', '.join(meta['choices'])}")
    return parsed


def to_args(config: Any) -> list[str]:
    # Defaults are left out.
    args: list[str] = []
    for field in _options(type(config)):
        value = getattr(config, field.name)
        if value == field.default:
            continue
        flag = flag_of(field.name)
        if _is_switch(field):
            args.append(flag if value else "--no-" + flag[2:])
        elif field.metadata["many"]:
            args += [flag, *map(str, value)]
        else:
            args += [flag, str(value)]
    return args


def _options(config: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(config) if "help" in field.metadata]


def _is_switch(field: dataclasses.Field[Any]) -> bool:
    return isinstance(field.default, bool) or field.metadata["parse"] is parse_bool


def _help_of(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata["help"])
    if field.default not in (None, "", ()) and "[default" not in text:
        unit = "s" if field.metadata["parse"] is parse_duration else ""
        text += f" [default: {field.default:g}{unit}]" if unit else f" [default: {field.default}]"
    return text.replace("%", "%%")


def _metavar_of(field: dataclasses.Field[Any]) -> str | None:
    meta = field.metadata
    if meta["choices"]:
        return None  # argparse then shows the choices
    if meta["metavar"]:
        return str(meta["metavar"])
    return "N" if isinstance(meta["parse"], parse_int | parse_number | parse_tokens) else "VALUE"


def _from_environment(field: dataclasses.Field[Any], environ: Mapping[str, str]) -> Any:
    # vLLM's variable counts if Kvasir's own is not set.
    name = variable_of(field.name)
    if (text := environ.get(name)) is not None:
        return _from_variable(field, name, text, text.split(","))
    if (found := value_for(field.name, environ)) is not None:
        return _from_variable(field, *found, [found[1]])
    return None


def _from_variable(field: dataclasses.Field[Any], name: str, text: str, parts: Sequence[str]) -> Any:
    meta = field.metadata
    if meta["never_blank"] and not text.strip(" \t\r\n,"):
        raise ConfigError(f"{name} is set but empty: give it a value, or unset it")
    if text == "":
        return None
    parse: Callable[[str], Any] = parse_bool if _is_switch(field) else meta["parse"]
    try:
        value = [parse(part) for part in parts if part] if meta["many"] else parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    choices = meta["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(choices)}")
    return value
