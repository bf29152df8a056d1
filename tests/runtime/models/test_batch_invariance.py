import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, PreTrainedModel

from kvasir.kernels.cpu import kernels_for
from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams
from runtime.models.mixtures import MIXTURES
from runtime.models.tiny import FAMILIES, MODELS, VOCAB, decoder, save
from runtime.worker.driver import Driver

OUTPUTS = 7
_RANDOM = random.Random(3)
PROMPT = [_RANDOM.randrange(2, VOCAB) for _ in range(37)]
CROWD = [[_RANDOM.randrange(2, VOCAB) for _ in range(length)] for length in (3, 60, 20, 37, 1, 44, 9)]

CASES: dict[str, Callable[[], PreTrainedModel]] = {
    **{name: model for name, model in MODELS.items() if name != "gemma2"},
    **{name: FAMILIES[name] for name in ("cohere", "hunyuan", "nemotron", "olmo2")},
    **{name: MIXTURES[name] for name in ("gpt-oss", "glm4-moe")},
    "gemma2": lambda: decoder(  # heads of 24 numbers do not fit the kernel of attention
        Gemma2Config,
        head_dim=32,
        sliding_window=21,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
    ),
}


@pytest.fixture(autouse=True)
def kernels() -> None:
    if kernels_for(torch.device("cpu"), torch.float32) is None:
        pytest.skip("there are no kernels for this machine's CPU: plain torch computes")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def scored(prompt_logprobs: int | None = None, max_tokens: int = OUTPUTS) -> SamplingParams:
    """The log probabilities of the whole vocabulary at every place."""
    return SamplingParams(
        max_tokens=max_tokens,
        seed=0,
        temperature=0.0,
        ignore_eos=True,
        logprobs=VOCAB,
        prompt_logprobs=prompt_logprobs,
    )


def bits(logprobs: list[Logprobs]) -> list[dict[int, float]]:
    """Floats by place and token; equal ones have equal bits, as none is 0 or NaN."""
    return [
        dict(zip(ids, values, strict=True))
        for part in logprobs
        for ids, values in zip(part.top_ids, part.top, strict=True)
    ]


def alone(driver: Driver, outputs: list[int], budget: int = 8192) -> list[dict[int, float]]:
    driver.add("x", PROMPT, scored(), outputs)
    driver.run(budget)
    return bits(driver.done["x"].logprobs)


def in_crowd(driver: Driver, budget: int, preempt_at: int = -1) -> list[dict[int, float]]:
    for index, prompt in enumerate(CROWD):
        driver.add(f"before{index}", prompt, scored())
    driver.add("x", PROMPT, scored())
    for index, prompt in enumerate(CROWD):
        driver.add(f"after{index}", prompt, scored())
    for step in range(preempt_at + 1):
        driver.step(budget)
        driver.finish()
        if step == preempt_at:
            driver.preempt("x")
    driver.run(budget)
    return bits(driver.done["x"].logprobs)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in CASES] + [(name, "bfloat16") for name in ("llama-gqa", "gpt2", "qwen3-moe")],
)
def test_log_probabilities_are_the_same_bits(name: str, dtype: str, tmp_path: Path) -> None:
    path = save(CASES[name]().to(getattr(torch, dtype)), tmp_path)
    driver = Driver.load(path, dtype=dtype, threads=1)
    expected = alone(driver, [])
    outputs = driver.done["x"].outputs
    assert len(expected) == OUTPUTS
    for budget in (7, 33):
        assert alone(driver, [], budget) == expected, f"chunks of {budget}"
    for emitted in (1, 6):
        assert alone(driver, outputs[:emitted]) == expected[emitted:], f"resumed after {emitted} tokens"
    driver.add("x", PROMPT + outputs, scored(VOCAB, max_tokens=1))
    driver.run()
    prefilled = bits(driver.done["x"].prompt_logprobs)[len(PROMPT) - 1 :]
    assert [
        {token: place[token] for token in top} for place, top in zip(prefilled, expected, strict=True)
    ] == expected
    assert in_crowd(driver, 8192) == expected
    torch.set_num_threads(2)
    assert in_crowd(driver, 50, preempt_at=4) == expected, "preempted in a crowd, in chunks, by two threads"
