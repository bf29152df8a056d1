"""The requests of a simulation: sessions of turns. A turn begins some time after the answer to the last one."""

import json
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kvasir.request.hashing import BlockHashing, chain_root, packed_chain
from kvasir.request.tokens import token_array

BLOCK_SIZE = 16
HASHING = BlockHashing(BLOCK_SIZE)
# Simulated engines generate nothing else, so the next turn of a conversation has it in its prompt.
OUTPUT_TOKEN = 7
# Tokens of a block in a recorded trace of Mooncake's form.
RECORDED_BLOCK = 512


@dataclass
class Turn:
    prompt: "array[int]"
    num_output: int
    # Seconds after the end of the turn before; for the first turn, after the start of the trace.
    pause: float
    # Tokens of a system prompt that all sessions share. Routers that hash the first message begin after it.
    system: int = 0
    # The digest of a LoRA adapter.
    adapter: str = ""

    @cached_property
    def chain(self) -> bytes:
        return packed_chain(chain_root(), self.prompt, BLOCK_SIZE)

    @cached_property
    def whole_chain(self) -> bytes:
        # With the output.
        return packed_chain(chain_root(), self.prompt + token_array([OUTPUT_TOKEN] * self.num_output), BLOCK_SIZE)


Session = list[Turn]


def _words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(10, 32_000) for _ in range(count)]


def conversations(rng: random.Random, sessions: int = 200, turns: int = 8) -> Iterator[Session]:
    """Yield sessions whose turns repeat all earlier ones, after a short common system prompt."""
    system = _words(rng, 96)
    for _ in range(sessions):
        text, session = system + _words(rng, rng.randrange(100, 600)), []
        for place in range(turns):
            pause = rng.uniform(0, 8) if place == 0 else rng.expovariate(1 / 3)
            session.append(Turn(token_array(text), 48, pause, system=len(system)))
            text = text + [OUTPUT_TOKEN] * 48 + _words(rng, rng.randrange(40, 240))
        yield session


def groups(rng: random.Random, requests: int = 1500, groups: int = 60) -> Iterator[Session]:
    """Yield requests with long prefixes of different popularity and a short unique text."""
    prefixes = [_words(rng, rng.randrange(1500, 3500)) for _ in range(groups)]
    weights = [1 / (rank + 1) for rank in range(groups)]
    now = 0.0
    for _ in range(requests):
        now += rng.expovariate(45)
        prefix = rng.choices(prefixes, weights)[0]
        yield [Turn(token_array(prefix + _words(rng, rng.randrange(40, 200))), 40, now)]


def bursts(rng: random.Random, bursts: int = 15, size: int = 40) -> Iterator[Session]:
    """Yield many requests with one new prompt within 50 ms, every two seconds, and cold prompts in between."""
    for number in range(bursts):
        prompt = token_array(_words(rng, 3000))
        for _ in range(size):
            yield [Turn(prompt, 32, 2.0 * number + rng.uniform(0, 0.05))]
        for _ in range(20):
            yield [Turn(token_array(_words(rng, 500)), 32, 2.0 * (number + rng.random()))]


def hot(rng: random.Random, requests: int = 1500) -> Iterator[Session]:
    # One system prompt for all requests.
    prefix, now = _words(rng, 3000), 0.0
    for _ in range(requests):
        now += rng.expovariate(70)
        yield [Turn(token_array(prefix + _words(rng, rng.randrange(30, 150))), 40, now)]


def adapters(rng: random.Random, requests: int = 1500, adapters: int = 32) -> Iterator[Session]:
    """Yield short prompts for LoRA adapters of different popularity."""
    weights, now = [1 / (rank + 1) for rank in range(adapters)], 0.0
    for _ in range(requests):
        now += rng.expovariate(30)
        adapter = f"adapter-{rng.choices(range(adapters), weights)[0]}"
        yield [Turn(token_array(_words(rng, rng.randrange(100, 400))), 40, now, adapter=adapter)]


def recorded(path: Path, requests: int, speed: float) -> Iterator[Session]:
    """Read a trace of Mooncake's form: JSON lines with timestamp (ms), output_length and hash_ids (of 512 tokens).

    `speed`: how much faster than recorded.
    """
    with path.open() as file:
        for _, line in zip(range(requests), file, strict=False):
            entry = json.loads(line)
            tokens = [10 + (n * 7919 + i) % 31_000 for n in entry["hash_ids"] for i in range(RECORDED_BLOCK)]
            prompt = token_array(tokens[: entry["input_length"]])
            yield [Turn(prompt, max(1, entry["output_length"]), entry["timestamp"] / 1000 / speed)]


SYNTHETIC: dict[str, Callable[[random.Random], Iterator[Session]]] = {
    "conversations": conversations,
    "one slow engine": conversations,
    "prefix groups": groups,
    "bursts": bursts,
    "hot prefix": hot,
    "adapters": adapters,
}
