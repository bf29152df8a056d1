"""Rewrite a command line of `vllm serve` into one of Kvasir.

Each option is kept, renamed, left out with a note, or rejected with a reason (verdicts.py). The model may come
from --model, its revision from --revision, and options from a file, --config. Options that neither has are kept
for the parser to report.
"""

import argparse
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvasir.config.vllm.config_file import words_of_file
from kvasir.config.vllm.given_options import GivenOption, Word, split_words, vllm_options
from kvasir.config.vllm.verdicts import IGNORED, MAPPED, NEUTRAL, READ, REFUSED, UNSET, VALUES

_ELSEWHERE: Final = "is not an option of this command: see kvasir serve --help"
_SECRETS: Final = ("--api-key", "--hf-token")
_OF_THE_MODEL: Final = ("--model", "--revision", "--tokenizer-revision")


@dataclass
class Rewritten:
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """A sentence for each option without effect."""


def advice_for_options() -> dict[str, str]:
    """Return the options that no parser has → what becomes of each."""
    ignored = {name: f"has no effect: {reason}" for name, reason in IGNORED.items()}
    renamed = {name: f"is {own} here" for name, own in MAPPED.items()}
    return {**ignored, **REFUSED, **renamed, **READ}


def rewrite(words: Sequence[str], own: Mapping[str, argparse.Action]) -> Rewritten:
    """Rewrite the words after the command. `own`: the parser's options. Raises ValueError for a rejected option."""
    given = _merged(_with_config_file(split_words(words, own), own), own)
    if "--model" not in own:
        given = _with_model_first(given)
    result = Rewritten()
    for word in given:
        if isinstance(word, str):
            result.words.append(word)
        elif (option := taken(word, own, result.notes)) is not None:
            result.words += _own(option, own[option.name]).words()
    return result


def _with_config_file(given: list[Word], own: Mapping[str, argparse.Action]) -> list[Word]:
    # The options of the file stand first, so that those of the command line win.
    if "--config" in own:
        return given
    files = [word for word in given if isinstance(word, GivenOption) and word.name == "--config"]
    if not files:
        return given
    if len(files) > 1 or len(files[0].values) != 1:
        raise ValueError("--config takes one file, and may be given once")
    of_file = split_words(words_of_file(files[0].values[0]), own)
    rest = [word for word in given if word is not files[0]]
    model = _model_of(rest)
    if model:
        of_file = [word for word in of_file if not (isinstance(word, GivenOption) and word.name == "--model")]
    if model in rest:  # before the options of the file, whose last one may take several values
        rest.remove(model)
        return [model, *of_file, *rest]
    return [*of_file, *rest]


def _model_of(given: Iterable[Word]) -> str:
    """Return the model that the command line names, or ""."""
    for word in given:
        if isinstance(word, GivenOption) and word.name == "--model":
            return word.values[0] if word.values else ""
        if isinstance(word, str) and not word.startswith("-"):
            return word
    return ""


def _merged(given: list[Word], own: Mapping[str, argparse.Action]) -> list[Word]:
    # vLLM takes some options once for each value.
    result: list[Word] = []
    first: dict[str, int] = {}
    for word in given:
        repeated = isinstance(word, GivenOption) and vllm_options().get(word.name, {}).get("takes") == "repeated"
        if isinstance(word, GivenOption) and repeated and word.name in own:
            if word.name in first:
                before = result[first[word.name]]
                assert isinstance(before, GivenOption)
                result[first[word.name]] = replace(before, values=before.values + word.values)
                continue
            first[word.name] = len(result)
        result.append(word)
    return result


def _with_model_first(given: list[Word]) -> list[Word]:
    options = {word.name: word for word in given if isinstance(word, GivenOption)}
    rest = [word for word in given if not (isinstance(word, GivenOption) and word.name in _OF_THE_MODEL)]
    model = _model_of(given)
    if "--model" not in options and "--revision" not in options:
        return [_tokenizer_at(word, options) for word in rest]
    if not model or not all(options[name].values for name in _OF_THE_MODEL if name in options):
        raise ValueError("--model and --revision take a value, and --revision needs the model too")
    if model in rest:
        rest.remove(model)
    named: list[Word] = []
    if "--revision" in options:
        named_by, model = model, at_revision(model, options["--revision"].values[0])
        if model != named_by and "--served-model-name" not in options:
            named = [GivenOption("--served-model-name", (named_by,))]
    return [model, *named, *(_tokenizer_at(word, options) for word in rest)]


def _tokenizer_at(word: Word, options: Mapping[str, GivenOption]) -> Word:
    revision = options.get("--tokenizer-revision")
    if isinstance(word, str) or word.name != "--tokenizer" or not (revision and revision.values and word.values):
        return word
    return replace(word, values=(at_revision(word.values[0], revision.values[0]),))


def at_revision(source: str, revision: str) -> str:
    """Return the source with the revision, if it is a repository of the hub without one."""
    if source.startswith(("/", "./", "../", "~")) or "@" in source or os.path.exists(source):
        return source
    return f"{source}@{revision}" if source.startswith("hf://") or "://" not in source else source


def _own(option: GivenOption, action: argparse.Action) -> GivenOption:
    # vLLM has further ways of writing some values.
    names = VALUES.get(option.name, {})
    values = tuple(names.get(value, value) for value in option.values)
    if option.name == "--log-level":
        values = tuple(names.get(value.lower(), value.lower()) for value in option.values)
    if action.nargs == "+" and len(values) == 1 and values[0].startswith("["):
        try:
            entries = json.loads(values[0])
        except ValueError:
            entries = None
        if isinstance(entries, list) and entries:
            values = tuple(map(str, entries))
    return replace(option, values=values)


def taken(option: GivenOption, own: Container[str], notes: list[str]) -> GivenOption | None:
    """Return the option under its name here, or None if it changes nothing. Raises ValueError if it is rejected."""
    name, is_off = option.name, option.name not in vllm_options()
    if name in own:
        return None if name in UNSET and option.values == (UNSET[name],) else option
    if is_off:
        name = "--" + name.removeprefix("--no-")
    written = name if name in _SECRETS else " ".join((name, *filter(None, option.values)))
    is_neutral = " ".join(option.values) in NEUTRAL.get(name, ())
    if (mapped := MAPPED.get(name)) and not is_neutral and _switched(mapped, is_off) in own:
        return replace(option, name=_switched(mapped, is_off))
    if name in IGNORED:
        notes.append(f"{option.name if is_off else written} has no effect: {IGNORED[name]}")
        return None
    if is_off or is_neutral:
        return None
    raise ValueError(f"{written}: {REFUSED.get(name, _ELSEWHERE)}")


def _switched(flag: str, is_off: bool) -> str:
    if not is_off:
        return flag
    return "--" + flag.removeprefix("--no-") if flag.startswith("--no-") else "--no-" + flag[2:]
