"""Rows with drafts: tokens and log probabilities are those of a run without drafts, bit by bit."""

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma2Config, Qwen3MoeConfig

from kvasir.config.speculation import Speculation
from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams
from runtime.models.tiny import MOE, decoder, gpt2, llama, save
from runtime.worker.cpu_graphs import capture_on_cpu
from runtime.worker.driver import Driver, Request, greedy

VOCAB = 64
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3},
    {"temperature": 0.0, "logprobs": 3, "repetition_penalty": 1.4},
    {"seed": 4, "logprobs": 2, "frequency_penalty": 0.7, "presence_penalty": -0.3, "top_p": 0.8},
    {"seed": 5, "top_k": 5, "min_p": 0.05, "min_tokens": 9, "stop_token_ids": (5, 9)},
    {"temperature": 0.7, "seed": 6, "logit_bias": ((3, 4.0), (7, 2.5)), "frequency_penalty": 0.9},
    {"temperature": 0.0, "bad_words": ((3,), (7, 8), (1, 2, 3)), "allowed_token_ids": tuple(range(1, 20))},
    {"seed": 2, "prompt_logprobs": 1, "logprobs": 0},
]


def drafts_of(right: Sequence[int], number: random.Random) -> list[int]:
    """Guess the next tokens: the right ones up to a random place."""
    count, good = number.randrange(6), number.randrange(6)
    return [token if place < good else number.randrange(VOCAB) for place, token in enumerate(right[:count])]


def whole(parts: Sequence[Logprobs]) -> list[list[Any]]:
    return [[value for part in parts for value in getattr(part, name)] for name in Logprobs.__struct_fields__]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = {
        "llama": llama(vocab_size=VOCAB),
        "gpt2": gpt2(vocab_size=VOCAB),
        "gemma2": decoder(Gemma2Config, vocab_size=VOCAB, head_dim=16, sliding_window=12),
        "qwen3-moe": decoder(Qwen3MoeConfig, vocab_size=VOCAB, **MOE),
    }
    return {name: save(model, tmp_path_factory.mktemp(name)) for name, model in models.items()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("gpt2", "float32"),  # attention in plain torch: its heads are small
        ("gemma2", "bfloat16"),  # windows
        ("qwen3-moe", "float32"),
    ],
)
def test_drafted_rows_change_no_bit(paths: dict[str, Path], name: str, dtype: str) -> None:
    compare(Driver.load(paths[name], dtype=dtype))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_drafted_rows_replay_graphs(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = capture_on_cpu(monkeypatch)
    compare(Driver.load(paths["gemma2"], graph_sizes=(2, 8)), count=3, longest=7)
    assert set(recorder.replays) == {0, 1}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_step_memory_has_room_for_the_tables_of_drafts(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_on_cpu(monkeypatch)
    speculation = Speculation("ngram", 5, max_step_rows=6, prompt_lookup_min=1, prompt_lookup_max=5)
    driver = Driver.load(paths["llama"], max_num_seqs=1, max_model_len=64, speculation=speculation)
    driver.drafter = lambda request: [3] * 5
    driver.add("a", range(45), greedy(4))
    assert len(driver.run()["a"]) == 4


def compare(driver: Driver, count: int = 16, longest: int = 24) -> None:
    """Run requests with and without drafts."""
    number = random.Random(7)
    requests = {
        str(place): (
            [number.randrange(VOCAB) for _ in range(number.randrange(1, longest))],
            SamplingParams(max_tokens=number.randrange(2, longest), **{"seed": 0} | options),
        )
        for place, options in enumerate((OPTIONS * 2)[:count])
    }
    runs = []
    for drafter in (lambda request: (), lambda request: drafts_of(expected(request), number)):
        driver.drafter = drafter
        for request_id, request in requests.items():
            driver.add(request_id, *request)
        outputs = driver.run(budget=60)
        logprobs = {name: (whole(done.logprobs), whole(done.prompt_logprobs)) for name, done in driver.done.items()}
        runs.append((outputs, logprobs, driver.steps))

        def expected(request: Request) -> list[int]:
            return runs[0][0][request.request_id][len(request.outputs) :]

    assert runs[0][:2] == runs[1][:2]
    assert runs[1][2] - runs[0][2] < 0.8 * runs[0][2]
