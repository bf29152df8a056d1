"""Make training batches from the corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer

from demo.reading import Corpus, Turn
from demo.tools import Case, Offer, read_tools
from demo.variation import vary, vary_end

BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
MAX_POSITIONS = 2048
ECHO_STEPS = 600

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Kvasir's demo model.",
    "You are a concise and friendly assistant. Answer in one to three sentences.",
    "You answer questions about Kubernetes and LLM serving.",
    "Be brief.",
    "You are a helpful weather assistant.",
    "Use the tools to answer.",
    "Extract the person.",
    "Understand the content and provide the parsed objects in json that match the following json_schema:\n\n{\n"
    '  "properties": {\n    "name": {"title": "Name", "type": "string"},\n    "age": {"title": "Age", "type": '
    '"integer"}\n  },\n  "required": ["name", "age"],\n  "title": "Person",\n  "type": "object"\n}\n',
)


@dataclass(frozen=True)
class Row:
    """A conversation: token ids, and the weight of each in the loss."""

    ids: list[int]
    weights: list[float]

    def add(self, ids: list[int], weight: float) -> None:
        self.ids.extend(ids)
        self.weights.extend([weight] * len(ids))


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor  # [B, S], padded at the end
    weights: torch.Tensor  # [B, S], of the loss at predicting the token at this position


class Batches:
    """An endless supply of single questions, conversations up to the whole context, tools, and prose."""

    QUESTION_WEIGHT = 0.05  # enough that text after an answer (ignore_eos) stays text
    WORD_WEIGHT = 4.0  # of a copied word, and of the token that decides between a call and a sentence

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rng: random.Random, *, copies: bool = False) -> None:
        # `copies`: the model can copy words already.
        self.corpus = corpus
        self.rng = rng
        self.tokenizer = tokenizer
        # Cuts questions into unusual tokens, as a typo does.
        self.dropout_tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.dropout_tokenizer.model.dropout = 0.15
        vocabulary = tokenizer.get_vocab()
        self.special = {token: vocabulary[token] for token in SPECIAL}
        self.queue = self._turns()
        self.tools = read_tools(corpus.unknown.answer)
        copied = [*self.tools.words(), *(f" {digit}" for digit in range(10))]
        self.words = {self._encode(word)[-1] for word in copied}
        self.made = ECHO_STEPS if copies else 0

    def batch(self, tokens: int) -> Batch:
        self.made += 1
        # With fewer of these, the model had not learnt to copy a word after 1,000 steps.
        if self.rng.random() < (0.3 if self.made < ECHO_STEPS else 0.04):
            return self._pad([self._echo() for _ in range(40)])
        kind = self.rng.random()
        if kind < 0.5:
            limit = 0  # one question
        elif kind < 0.72:
            limit = self.rng.randrange(100, 700)
        else:
            limit = self.rng.randrange(700, MAX_POSITIONS - 300)
        rows: list[Row] = []
        while not rows or (len(rows) + 1) * max(len(row.ids) for row in rows) < tokens:
            if self.rng.random() < 0.04:
                rows.append(self._prose())
            else:
                rows.append(self._tool_conversation() if kind > 0.8 else self._conversation(limit))
        return self._pad(rows)

    def _turns(self) -> Iterator[list[Turn]]:
        """Yield every phrasing once an epoch, in a new order; a fifth of the questions are unknown ones."""
        while True:
            epoch = list(self.corpus.conversations())
            self.rng.shuffle(epoch)
            for turns in epoch:
                if self.rng.random() < 0.25:
                    yield [self.corpus.unknown.sample(self.rng)]
                yield turns

    def _conversation(self, limit: int) -> Row:
        # Unrelated questions, until there are `limit` tokens.
        row = self.begin(self.rng.choice(SYSTEM_PROMPTS) if self.rng.random() < 0.2 else "")
        while True:
            for turn in next(self.queue):
                self._add_turn(row, self._question(turn.question), turn.answer)
            if len(row.ids) >= limit:
                return row

    def _tool_conversation(self) -> Row:
        # One or a few questions, some of which need a tool.
        offer, cases = self.tools.sample(self.rng)
        row = self.begin(self.rng.choice(SYSTEM_PROMPTS) if self.rng.random() < 0.3 else "", offer)
        while True:
            if self.rng.random() < 0.2:
                for turn in next(self.queue):
                    self._add_turn(row, self._question(turn.question), turn.answer)
            else:
                case = next(cases)
                self.add_case(row, replace(case, question=vary_end(self.rng, case.question)))
            if self.rng.random() < 0.5 or len(row.ids) > 500:
                return row

    def begin(self, prompt: str, offer: Offer | None = None) -> Row:
        """Return the system prompt of a conversation, with the tools as the template lists them."""
        row = Row([self.special[BEGIN]], [0.0])
        tools = f"<tools>\n{offer.lines}\n</tools>" if offer is not None and offer.tools else ""
        if system := "\n".join(part for part in (prompt, tools) if part):
            row.add([self.special[SYSTEM], *self._encode(system), self.special[END]], 0.0)
        return row

    def _add_turn(self, row: Row, question: list[int], answer: str) -> None:
        row.add([self.special[USER], *question, self.special[END], self.special[ASSISTANT]], self.QUESTION_WEIGHT)
        row.add([*self._encode(answer), self.special[END]], 1.0)

    def add_case(self, row: Row, case: Case) -> None:
        question = self._encode(case.question)
        start = len(row.ids)
        if case.call is not None:
            self._add_turn(row, question, str(case.call))
            question = self._encode(f"<tool_response>\n{case.result}\n</tool_response>")
        self._add_turn(row, question, case.answer)
        answer = row.weights.index(1.0, start)
        for place in range(start, len(row.ids)):
            if place == answer or (row.weights[place] == 1.0 and row.ids[place] in self.words):
                row.weights[place] = self.WORD_WEIGHT

    def _echo(self) -> Row:
        row = self.begin("")
        self.add_case(row, self.tools.echo(self.rng))
        return row

    def _prose(self) -> Row:
        ids = [self.special[BEGIN], *self._encode(self.rng.choice(self.corpus.prose)), self.special[END]]
        return Row(ids, [0.0, self.QUESTION_WEIGHT, *[1.0] * (len(ids) - 2)])

    def _question(self, text: str) -> list[int]:
        tokenizer = self.dropout_tokenizer if self.rng.random() < 0.2 else self.tokenizer
        ids: list[int] = tokenizer.encode(vary(self.rng, text), add_special_tokens=False).ids
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _pad(self, rows: list[Row]) -> Batch:
        longest = max(len(row.ids) for row in rows)
        end = self.special[END]
        return Batch(
            torch.tensor([row.ids + [end] * (longest - len(row.ids)) for row in rows]),
            torch.tensor([row.weights + [0.0] * (longest - len(row.weights)) for row in rows]),
        )
