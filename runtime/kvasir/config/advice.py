"""Suggest names for unknown options and environment variables."""

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

# Similarity of names that count as the same, however they are split into words.
_SAME: Final = 0.9
# Similarity of each word, if both names have equally many: "size" alone matches too much.
_SAME_WORD: Final = 0.6
# Characters of a prefix that hints at the whole name, dashes included.
_BEGINNING: Final = 5


def for_option(given: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return a suggestion in brackets for an unknown option, or "".

    `elsewhere`: options of vLLM → what becomes of them here.
    """
    name = given.replace("_", "-")
    if name in elsewhere:
        return f" ({name}: {elsewhere[name]})"
    same_side = [other for other in (*known, *elsewhere) if _negative(other) == _negative(name)]
    meant = closest(name, same_side)
    if meant in elsewhere:
        return f" (did you mean {meant}? Here: {elsewhere[meant]})"
    return f" (did you mean {meant}?)" if meant else ""


def for_missing(words: Sequence[str], many: Collection[str]) -> str:
    """Return a hint in brackets if one of the `many` options took the missing positional argument, or ""."""
    for at, word in enumerate(words):
        taken = list(itertools.takewhile(lambda value: not value.startswith("-"), words[at + 1 :]))
        if word in many and len(taken) > 1:
            return f" ({word} takes several values and took {taken[-1]} too: write that before {word})"
    return ""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that this one abbreviates or misspells, or ""."""
    close = [other for other in known if _begins(name, other) or _is_slip(name, other)]
    return max(close, key=lambda other: _likeness(name, other), default="")


def _negative(option: str) -> bool:
    # Options that switch off are not suggested for those that switch on.
    return option.startswith(("--no-", "--disable-"))


def _begins(name: str, other: str) -> bool:
    return len(name) >= _BEGINNING and other.startswith(name)


def _is_slip(name: str, other: str) -> bool:
    words, others = (text.lower().replace("_", "-").strip("-").split("-") for text in (name, other))
    if len(words) == len(others):
        return all(_likeness(*pair) >= _SAME_WORD for pair in zip(words, others, strict=True))
    return _likeness(name, other) >= _SAME


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
