"""Make training batches of the corpus: token ids, and the weight of each of them in the loss."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from demo.reading import Corpus, Turn
from demo.variation import vary

BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
MAX_POSITIONS = 2048

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Kvasir's demo model.",
    "You are a concise and friendly assistant. Answer in one to three sentences.",
    "You answer questions about Kubernetes and LLM serving.",
    "Be brief.",
)


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor  # [B, S], padded at the end
    weights: torch.Tensor  # [B, S], of the loss at predicting the token at this position


class Batches:
    """An endless supply of batches: single questions, conversations, some as long as the context, and prose."""

    QUESTION_WEIGHT = 0.05  # enough that text after an answer (ignore_eos) stays text

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rng: random.Random) -> None:
        self.corpus = corpus
        self.rng = rng
        self.tokenizer = tokenizer
        # Cuts questions into other tokens than usual, as a typo does.
        self.dropout_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.dropout_tokenizer.model.dropout = 0.15
        vocabulary = tokenizer.get_vocab()
        self.special = {token: vocabulary[token] for token in SPECIAL}
        self.queue = self._turns()

    def batch(self, tokens: int) -> Batch:
        kind = self.rng.random()
        if kind < 0.6:
            limit = 0  # one question
        elif kind < 0.9:
            limit = self.rng.randrange(100, 700)
        else:
            limit = self.rng.randrange(700, MAX_POSITIONS - 300)
        rows: list[tuple[list[int], list[float]]] = []
        while not rows or (len(rows) + 1) * max(len(ids) for ids, _ in rows) < tokens:
            rows.append(self._prose() if self.rng.random() < 0.04 else self._conversation(limit))
        return self._pad(rows)

    def _turns(self) -> Iterator[list[Turn]]:
        """Return every phrasing once an epoch, in a new order; a fifth of the questions are unknown ones."""
        while True:
            epoch = list(self.corpus.conversations())
            self.rng.shuffle(epoch)
            for turns in epoch:
                if self.rng.random() < 0.25:
                    yield [self.corpus.unknown.sample(self.rng)]
                yield turns

    def _conversation(self, limit: int) -> tuple[list[int], list[float]]:
        """Return unrelated questions one after the other, until there are `limit` tokens."""
        ids, weights = [self.special[BEGIN]], [0.0]
        if self.rng.random() < 0.2:
            text = [self.special[SYSTEM], *self._encode(self.rng.choice(SYSTEM_PROMPTS)), self.special[END]]
            ids += text
            weights += [0.0] * len(text)
        while True:
            for turn in next(self.queue):
                question, answer = self._question(turn.question), self._encode(turn.answer)
                ids += [self.special[USER], *question, self.special[END], self.special[ASSISTANT]]
                weights += [self.QUESTION_WEIGHT] * (len(question) + 3)
                ids += [*answer, self.special[END]]
                weights += [1.0] * (len(answer) + 1)
            if len(ids) >= limit:
                return ids, weights

    def _prose(self) -> tuple[list[int], list[float]]:
        ids = [self.special[BEGIN], *self._encode(self.rng.choice(self.corpus.prose)), self.special[END]]
        return ids, [0.0, self.QUESTION_WEIGHT, *[1.0] * (len(ids) - 2)]

    def _question(self, text: str) -> list[int]:
        tokenizer = self.dropout_tokenizer if self.rng.random() < 0.2 else self.tokenizer
        ids: list[int] = tokenizer.encode(vary(self.rng, text), add_special_tokens=False).ids
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _pad(self, rows: list[tuple[list[int], list[float]]]) -> Batch:
        longest = max(len(ids) for ids, _ in rows)
        end = self.special[END]
        return Batch(
            torch.tensor([ids + [end] * (longest - len(ids)) for ids, _ in rows]),
            torch.tensor([weights + [0.0] * (longest - len(weights)) for _, weights in rows]),
        )
