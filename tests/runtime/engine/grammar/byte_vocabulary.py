"""A tokenizer whose tokens are the 256 bytes, and a random walk over the tokens that a guide allows."""

import random
from collections.abc import Iterator
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from kvasir.engine.grammar.compiling import compile_grammar
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.request.constraint import Grammar, OutputConstraint

EOS: Final = 256
VOCAB: Final = 257


class _Bytes:
    eos_token_id = EOS
    bos_token_id = None
    tokens: Final = [*(bytes([byte]) for byte in range(256)), b"<eos>"]
    special_token_ids: Final = [EOS]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER: Final = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def guide_for(constraint: OutputConstraint) -> OutputGuide:
    matcher = None if constraint.grammar is None else compile_grammar(TOKENIZER, constraint.grammar)
    return OutputGuide(constraint, matcher, vocab_size=VOCAB, known_tokens=VOCAB, eos_token_ids=[EOS])


def accepts(grammar: Grammar, text: str) -> bool:
    """Return whether the text is a whole output."""
    matcher = compile_grammar(TOKENIZER, grammar)
    tokens = list(text.encode())
    return (
        matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


def allowed(guide: OutputGuide, vocab_size: int = VOCAB) -> list[int]:
    mask = np.full(-(-vocab_size // 32), 0xA5A5A5A5, np.uint32)
    guide.fill(mask)
    return tokens_of(mask)


def tokens_of(mask: npt.NDArray[np.uint32]) -> list[int]:
    bits: list[int] = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    return bits


def walk(
    guide: OutputGuide, rng: random.Random, eos: int, vocab_size: int, preferred: frozenset[int], most: int = 400
) -> Iterator[int]:
    """Yield random tokens that the guide allows, until it has accepted the end or `most` are there.

    The `preferred` tokens, quotes and brackets, become likely after a while: otherwise few outputs would end.
    """
    for place in range(most):
        forced = guide.forced_tokens()
        tokens = allowed(guide, vocab_size)
        assert not forced or tokens == [forced[0]]
        if eos in tokens and (len(tokens) == 1 or rng.random() < 0.3):
            guide.accept([eos])
            return
        tokens = [token for token in tokens if token != eos]
        ending = [token for token in tokens if token in preferred]
        token = rng.choice(ending if ending and place > 30 and rng.random() < 0.6 else tokens)
        guide.accept([token])
        yield token
