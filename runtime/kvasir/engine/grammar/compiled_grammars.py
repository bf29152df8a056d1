"""CompiledGrammars: an LRU cache of compiled and refused grammars, bounded in number and memory."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import llguidance

from kvasir.request.constraint import Grammar

MAX_CACHED_GRAMMARS: Final = 1_000
MAX_CACHED_BYTES: Final = 256 << 20
PASSING_SECONDS: Final = 10.0  # for a refusal that another trial might not repeat
_BYTES_PER_CHARACTER: Final = 200
_MIN_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class _Entry:
    compiled: llguidance.LLMatcher | str
    until: float | None


class CompiledGrammars:  # not thread-safe
    def __init__(
        self,
        max_grammars: int = MAX_CACHED_GRAMMARS,
        max_bytes: int = MAX_CACHED_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[Grammar, _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, grammar: Grammar) -> llguidance.LLMatcher | str | None:
        entry = self._entries.get(grammar)
        if entry is None:
            return None
        if entry.until is not None and self._clock() >= entry.until:
            self._drop(grammar)
            return None
        self._entries.move_to_end(grammar)
        return entry.compiled

    def put(self, grammar: Grammar, compiled: llguidance.LLMatcher | str, lasting: bool = True) -> None:
        if grammar in self._entries:
            self._drop(grammar)
        self._bytes += estimated_bytes(grammar)
        self._entries[grammar] = _Entry(compiled, None if lasting else self._clock() + PASSING_SECONDS)
        while len(self._entries) > self._max_grammars or (self._bytes > self._max_bytes and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def _drop(self, grammar: Grammar) -> None:
        del self._entries[grammar]
        self._bytes -= estimated_bytes(grammar)


def estimated_bytes(grammar: Grammar) -> int:
    return _MIN_BYTES + _BYTES_PER_CHARACTER * len(grammar.text)
