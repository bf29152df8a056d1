"""Guides without grammars: which tokens may follow is a pseudo-random function of the output so far."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvasir.engine.engine_request import GuideError
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.engine.fake_executor import EOS, VOCAB_SIZE, choose, next_token

REFUSED = "refused"
"""The text of a grammar that is refused."""


def constraint(text: str) -> OutputConstraint:
    return OutputConstraint(Grammar(GrammarKind.REGEX, text))


class FakeGuide:
    """A fifth of the tokens may follow, at times any, at times only one, and only EOS at the end."""

    def __init__(self, text: str, output: Sequence[int]) -> None:
        self.text = text
        self.output = list(output)

    @property
    def _number(self) -> int:
        return zlib.crc32(repr((self.text, self.output)).encode())

    @property
    def is_free(self) -> bool:
        return not self.is_complete and self._number % 7 == 0

    def forced_tokens(self) -> Sequence[int]:
        """At times they are not known, as with llguidance."""
        return () if self._only is None or self._number % 9 == 1 else (self._only, *range(self._number % 40))

    @property
    def _only(self) -> int | None:
        is_forced = self._number % 4 == 1 and not (self.is_complete or self.is_free)
        return 1 + self._number % (VOCAB_SIZE - 1) if is_forced else None

    @property
    def is_complete(self) -> bool:
        return bool(self.output) and self._number % 11 == 0

    @property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """[VOCAB_SIZE]"""
        tokens: npt.NDArray[np.int64] = np.arange(VOCAB_SIZE)
        if self.is_complete:
            return np.equal(tokens, EOS)
        if self._only is not None:
            return np.equal(tokens, self._only)
        return np.equal((7 * tokens + self._number) % 5, 0) | self.is_free

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        mask[:] = 0
        packed = np.packbits(self.allowed, bitorder="little")
        mask.view(np.uint8)[: len(packed)] = packed

    def accept(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not self.allowed[token_id]:
                raise GuideError(f"token {token_id} is not allowed after {self.output}")
            self.output.append(token_id)

    def copy(self) -> "FakeGuide":
        return FakeGuide(self.text, self.output)


class FakeGrammars:
    """Implements GuideSource. Constraints are compiled at once, or by `compile`."""

    def __init__(self, ready: Callable[[str], None]) -> None:
        self._ready = ready
        self.compiling: dict[str, tuple[OutputConstraint, tuple[int, ...]]] = {}
        """Kept by ticket, while `is_slow` is set."""
        self.is_slow = False
        self.outcomes: dict[str, FakeGuide | str] = {}

    def begin(self, request_id: str, constraint: OutputConstraint, output_token_ids: Sequence[int]) -> None:
        self.compiling[request_id] = (constraint, tuple(output_token_ids))
        if not self.is_slow:
            self._compile(request_id)

    def compile(self, name: str) -> None:
        """Compile the constraints of a request."""
        for ticket in [ticket for ticket in self.compiling if ticket.rpartition("#")[0] == name]:
            self._compile(ticket)

    def outcome(self, request_id: str) -> FakeGuide | str | None:
        return self.outcomes.get(request_id)

    def forget(self, request_id: str) -> None:
        self.compiling.pop(request_id, None)
        self.outcomes.pop(request_id, None)

    def close(self) -> None:
        pass

    def _compile(self, ticket: str) -> None:
        constraint, output = self.compiling.pop(ticket)
        assert constraint.grammar is not None
        text = constraint.grammar.text
        self.outcomes[ticket] = "the grammar is bad" if text == REFUSED else FakeGuide(text, output)
        self._ready(ticket)


def guided_output(
    prompt: Sequence[int], count: int, text: str, model: Callable[[Sequence[int]], int] = next_token
) -> list[int]:
    """Return what a request with this grammar must receive, up to its end."""
    guide = FakeGuide(text, [])
    while len(guide.output) < count and not guide.is_complete and EOS not in guide.output:
        guide.accept([choose(model([*prompt, *guide.output]), guide.allowed)])
    return guide.output
