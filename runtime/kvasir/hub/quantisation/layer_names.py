"""Sets of layers by name, as configs write them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from kvasir.hub.hub_errors import HubError

# A text model inside a multimodal one has another prefix in checkpoints than here.
_PREFIXES: Final = (
    "",
    "model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "transformer.",
)
_REGEX: Final = "re:"


@dataclass(frozen=True)
class Layer:
    """A linear layer of a checkpoint, by its possible names."""

    names: tuple[str, ...]  # without the prefix of the model
    is_expert: bool = False

    @property
    def is_head(self) -> bool:
        return "lm_head" in self.names

    def spellings(self) -> Iterator[str]:
        return (prefix + name for name in self.names for prefix in _PREFIXES)


@dataclass(frozen=True)
class LayerNames:
    """Layers by names, by parts of names, by regex or by wildcard.

    >>> LayerNames.of(["mlp.gate"]).holds(Layer(("layers.0.mlp.gate",)))
    True
    """

    names: frozenset[str] = frozenset()
    regexes: tuple[str, ...] = ()
    wildcards: tuple[str, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> "LayerNames":
        """Raises HubError for a broken regular expression."""
        entries = list(entries)
        regexes = tuple(entry.removeprefix(_REGEX) for entry in entries if entry.startswith(_REGEX))
        for regex in regexes:
            check_regex(regex)
        others = [entry for entry in entries if not entry.startswith(_REGEX)]
        return cls(
            frozenset(entry.rstrip(".") for entry in others if "*" not in entry),
            regexes,
            tuple(entry for entry in others if "*" in entry),
        )

    def holds(self, layer: Layer) -> bool:
        if self.names and any(part in self.names for name in layer.spellings() for part in _parts(name)):
            return True
        return any(
            any(re.match(regex, name) for regex in self.regexes)
            or any(fnmatchcase(name, wildcard) or fnmatchcase(name, f"{wildcard}.*") for wildcard in self.wildcards)
            for name in layer.spellings()
        )


def check_regex(regex: str) -> None:
    try:
        re.compile(regex)
    except re.error as error:
        raise HubError(f"quantization_config has the broken regular expression {regex[:200]!r}: {error}") from None


def _parts(name: str) -> Iterator[str]:
    # a.b.c: a, a.b, a.b.c, b, b.c, c
    words = name.split(".")
    for begin in range(len(words)):
        for end in range(begin + 1, len(words) + 1):
            yield ".".join(words[begin:end])
