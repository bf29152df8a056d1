"""Random outputs that a grammar allows, by llguidance's masks."""

import random
from typing import Final

import llguidance
import numpy as np

from kvasir.engine.grammar.vocabulary import Vocabulary, build_tokenizer
from kvasir.hub.tokenizer import Tokenizer

CLOSING: Final = frozenset("\"'}]>)\n,")


class Walker:
    def __init__(self, tokenizer: Tokenizer, eos_token: str = "</s>") -> None:
        eos = tokenizer.backend.token_to_id(eos_token)
        assert eos is not None
        self._eos = eos
        self._tokenizer = tokenizer
        ids = range(tokenizer.backend.get_vocab_size())
        self._trie = build_tokenizer(Vocabulary(tokenizer.backend.to_str(), len(ids), (eos,)))
        texts = {token_id: tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids}
        self._closing = {token_id for token_id, text in texts.items() if text and set(text) <= CLOSING}

    def matcher(self, lark: str) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._trie, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
        return matcher

    def accepts(self, lark: str, text: str) -> bool:
        """Whether a text matches the whole grammar."""
        matcher = self.matcher(lark)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def allows(self, lark: str, text: str) -> bool:
        """Whether an output may begin with this text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return self.matcher(lark).try_consume_tokens(ids) == len(ids)

    def walk(self, lark: str, seed: int, beginning: str = "", most: int = 800) -> str | None:
        """Return a random output, or None if it is not complete after `most` tokens."""
        matcher, choose = self.matcher(lark), random.Random(seed)
        ids = self._tokenizer.encode(beginning, add_special_tokens=False)
        assert matcher.try_consume_tokens(ids) == len(ids), beginning
        for _ in range(most):
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            assert allowed, matcher.get_error()
            if self._eos in allowed and (len(allowed) == 1 or choose.random() < 0.2):
                return self._tokenizer.decode(ids, skip_special_tokens=False)
            allowed = [token_id for token_id in allowed if token_id != self._eos]
            closing = [token_id for token_id in allowed if token_id in self._closing]
            ids.append(choose.choice(closing if closing and choose.random() < 0.4 else allowed))
            assert matcher.consume_token(ids[-1])
        return None
