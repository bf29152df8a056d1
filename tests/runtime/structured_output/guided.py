"""The engine's guides over a vocabulary of bytes: which texts a grammar takes, and random outputs of it."""

import random
from functools import cache

import llguidance
import numpy as np

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.engine.grammar.compiling import compile_grammar
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.request.constraint import Grammar, OutputConstraint

EOS = 256
SIZE = EOS + 1
_CLOSING = b'"}]'
"""Bytes that a random output takes more often, so that it ends."""


class _Bytes:
    """A tokenizer as llguidance takes it: one token for each byte, and one for the end."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = [*(bytes([value]) for value in range(EOS)), b"<eos>"]  # noqa: RUF012
    special_token_ids = [EOS]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


class Guided:
    """A grammar, compiled as the engine compiles it. Raises BadGrammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._constraint = OutputConstraint(grammar)
        self._matcher = compile_grammar(_tokenizer(), grammar)

    @classmethod
    def of(cls, form: str, value: object, **options: object) -> "Guided":
        """The grammar of a request's field. Raises InvalidRequest, BadGrammar."""
        return cls(GrammarSource(form, value, "field", **options).grammar())  # type: ignore[arg-type]

    def takes(self, text: str | bytes) -> bool:
        """Whether this is a whole output."""
        matcher, tokens = self._matcher.deep_copy(), _Bytes()(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def prefix(self, text: str) -> str:
        """Return the longest part of the text that begins an output."""
        tokens = text.encode()
        return tokens[: self._matcher.deep_copy().try_consume_tokens(list(tokens))].decode(errors="replace")

    def draw(self, seed: int, most: int = 4_000) -> str | None:
        """Return a random output; None if it is longer than `most` bytes."""
        rng, guide = random.Random(seed), self._guide()
        output, mask = bytearray(), np.empty(-(-SIZE // 32), np.uint32)
        while len(output) < most:
            guide.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE]).tolist()
            likely = [token for token in allowed if token == EOS or token in _CLOSING]
            token = rng.choice(likely if likely and rng.random() < 0.3 else allowed)
            guide.accept([token])
            if token == EOS:
                return output.decode()
            output.append(token)
        return None

    def _guide(self) -> OutputGuide:
        return OutputGuide(
            self._constraint, self._matcher.deep_copy(), vocab_size=SIZE, known_tokens=SIZE, eos_token_ids=[EOS]
        )
