"""Requests of a chaos run: each kind that must survive the loss of its engine, drawn from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kvasir.chaos.constrained import CONSTRAINED

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
# This kind gets its stop string when its greedy answer is known, see `with_stop`.
STOP_STRING: Final = "stop string"

_SEEDED: Final = {"temperature": 1.0, "seed": 11}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0},
    "seeded": {**_SEEDED, "top_p": 0.9, "top_k": 50},
    "penalties": {
        **_SEEDED,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
        "ignore_eos": True,
    },
    "min tokens": {**_SEEDED, "min_tokens": 6},
    STOP_STRING: {"temperature": 0, "ignore_eos": True},
    "choices": {**_SEEDED, "n": 3},
    "logprobs": {**_SEEDED, "logprobs": 3},
    "echo": {"temperature": 0, "echo": True, "logprobs": 2, "ignore_eos": True},
    "chat": {"temperature": 0, "messages": []},
    "seeded chat": {**_SEEDED, "messages": [], "logprobs": True, "top_logprobs": 2},
    **CONSTRAINED,
}
_WORDS: Final = ("a", "pod", "of", "the", "engine", "serves", "many", "requests", "and", "its", "cache", "holds")
_MAX_WORDS: Final = 160


@dataclass(frozen=True)
class Question:
    kind: str
    path: str
    body: dict[str, Any]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def name(self) -> str:
        return f"{self.kind}, {'streamed' if self.streamed else 'whole'}"


def questions(count: int, model: str, max_tokens: int, seed: int) -> list[Question]:
    # In turn, streamed and not, with prompts of different lengths.
    rng = random.Random(f"questions {seed}")
    kinds = list(KINDS)
    found = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        streamed = number // len(kinds) % 2 == 0
        found.append(_question(kind, _text(number, rng), streamed, model, rng.randint(8, max_tokens), rng))
    return found


def with_stop(question: Question, answer: str) -> Question:
    # A stop string of several tokens holds each of them back until the next one.
    return replace(question, body={**question.body, "stop": [answer[-14:-3] or answer]}) if answer else question


def continued(question: Question, answer: str, number: int) -> Question:
    # Its beginning is in no prefix cache.
    prompt = f"Again {number}. {text_of(question)} {answer}"
    body = {"model": question.body["model"], "prompt": prompt, "max_tokens": 1, "temperature": 0}
    return Question("again", COMPLETIONS, body)


def text_of(question: Question) -> str:
    if "prompt" in question.body:
        return str(question.body["prompt"])
    return " ".join(message["content"] for message in question.body["messages"])


def names(asked: Sequence[Question]) -> list[str]:
    return sorted({question.kind for question in asked})


def _question(kind: str, text: str, streamed: bool, model: str, tokens: int, rng: random.Random) -> Question:
    body = {"model": model, "max_tokens": tokens, **KINDS[kind]}
    if "seed" in body:
        body["seed"] = rng.randrange(2**31)
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": text}]
        return Question(kind, CHAT, body)
    return Question(kind, COMPLETIONS, body | {"prompt": text})


def _text(number: int, rng: random.Random) -> str:
    # Most are short, and none begins like another one.
    words = rng.choices(_WORDS, k=max(3, int(_MAX_WORDS * rng.random() ** 3)))
    return f"{number}: {' '.join(words)}"
