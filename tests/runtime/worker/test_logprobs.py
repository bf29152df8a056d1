"""Log probabilities of output and prompt against transformers' log_softmax, however a request is computed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvasir.link.protocol import Logprobs
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch import prompt_logprobs
from kvasir.worker.step import NewRow, ScheduledRow, StepInput
from runtime.models.tiny import MODELS, VOCAB, llama, reference_logits, save
from runtime.worker.driver import Driver, Request

TOLERANCE = 2e-3
"""Logits of the tiny models reach 30 and more; ours and transformers' differ by some 1e-4."""


@pytest.fixture(scope="module", params=["llama-gqa", "gpt2"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    model = MODELS[request.param]()
    return model, save(model, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def reference(tiny: tuple[PreTrainedModel, Path]) -> PreTrainedModel:
    return tiny[0]


@pytest.fixture(scope="module")
def driver(tiny: tuple[PreTrainedModel, Path]) -> Driver:
    return Driver.load(tiny[1])


def prompt_of(length: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def run(
    driver: Driver, prompt: list[int], params: SamplingParams, outputs: list[int] | None = None, budget: int = 8192
) -> Request:
    driver.add("alone", prompt, params, outputs or [])
    driver.run(budget)
    return driver.done["alone"]


def joined(parts: list[Logprobs]) -> Logprobs:
    """Return the log probabilities of single tokens as one."""
    return Logprobs(
        [part.token[0] for part in parts],
        [part.rank[0] for part in parts],
        [part.top_ids[0] for part in parts],
        [part.top[0] for part in parts],
    )


def assert_logprobs(found: Logprobs, logits: Tensor, tokens: list[int], k: int) -> None:
    """logits: [len(tokens), vocabulary] of the reference, which may order near ties differently."""
    expected = logits.double().log_softmax(-1)
    assert len(found.token) == len(found.rank) == len(found.top_ids) == len(found.top) == len(tokens)
    for place, token in enumerate(tokens):
        row = expected[place]
        assert found.token[place] == pytest.approx(float(row[token]), abs=TOLERANCE)
        surely_above = int((row > row[token] + TOLERANCE).sum())
        perhaps_above = int((row > row[token] - TOLERANCE).sum())
        assert surely_above < found.rank[place] <= max(perhaps_above, 1)
        assert len(set(found.top_ids[place])) == len(found.top[place]) == k
        assert found.top[place] == pytest.approx(row.topk(k).values.tolist(), abs=TOLERANCE)
        assert found.top[place] == pytest.approx([float(row[top]) for top in found.top_ids[place]], abs=TOLERANCE)
        assert found.top[place] == sorted(found.top[place], reverse=True)


def assert_near(one: Logprobs, other: Logprobs) -> None:
    assert len(one.token) == len(other.token)
    assert one.token == pytest.approx(other.token, abs=TOLERANCE)
    for mine, yours in zip(one.top, other.top, strict=True):
        assert mine == pytest.approx(yours, abs=TOLERANCE)


def test_of_sampled_tokens_whatever_changes_the_logits(driver: Driver, reference: PreTrainedModel) -> None:
    """They are the model's own, before bias, penalties, masks, temperature and filters."""
    prompt = prompt_of(21)
    for params in (
        SamplingParams(max_tokens=12, seed=0, temperature=0.0, logprobs=5),
        SamplingParams(max_tokens=12, seed=4, temperature=2.0, top_k=20, min_p=0.01, logprobs=5),
        SamplingParams(
            max_tokens=12,
            seed=4,
            temperature=1.5,
            logprobs=5,
            repetition_penalty=1.5,
            frequency_penalty=1.0,
            logit_bias=((7, 20.0), (8, -20.0)),
            bad_words=((9,),),
            allowed_token_ids=tuple(range(0, VOCAB, 2)),
        ),
    ):
        done = run(driver, prompt, params)
        logits = reference_logits(reference, prompt, done.outputs)
        assert_logprobs(joined(done.logprobs), logits, done.outputs, 5)
        assert not done.prompt_logprobs


@pytest.mark.parametrize("length", [1, 2, 8, 100])
@pytest.mark.parametrize("budget", [8192, 7, 1])
def test_of_prompts_computed_in_chunks(
    driver: Driver, reference: PreTrainedModel, length: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "_POSITIONS", 13)
    prompt = prompt_of(length)
    params = SamplingParams(max_tokens=2, seed=0, temperature=0.0, prompt_logprobs=3)
    done = run(driver, prompt, params, budget=budget)
    (found,) = done.prompt_logprobs
    assert_logprobs(found, reference_logits(reference, prompt[:1], prompt[1:]), prompt[1:], 3)
    assert not done.logprobs


def test_no_likely_tokens_are_reported_if_none_are_asked(driver: Driver) -> None:
    params = SamplingParams(max_tokens=3, seed=0, temperature=0.0, logprobs=0, prompt_logprobs=0)
    done = run(driver, prompt_of(9), params)
    assert [part.top_ids for part in done.logprobs] == [[[]]] * 3
    assert [part.rank for part in done.logprobs] == [[1]] * 3
    assert done.prompt_logprobs[0].top == [[]] * 8


def test_a_prompt_is_told_once_however_often_it_is_preempted(driver: Driver) -> None:
    prompt = prompt_of(40)
    params = SamplingParams(max_tokens=6, seed=0, temperature=0.0, logprobs=2, prompt_logprobs=2)
    whole = run(driver, prompt, params)
    driver.add("preempted", prompt, params)
    driver.step(budget=15)
    driver.preempt("preempted")  # in the middle of its prompt
    driver.step(budget=30)
    driver.step(budget=30)
    driver.preempt("preempted")  # after its first output
    driver.run(budget=25)
    done = driver.done["preempted"]
    assert done.outputs == whole.outputs
    assert len(done.prompt_logprobs) == 1
    assert_near(done.prompt_logprobs[0], whole.prompt_logprobs[0])
    assert_near(joined(done.logprobs), joined(whole.logprobs))


def test_a_resumed_request_reports_its_new_tokens_only(driver: Driver) -> None:
    prompt = prompt_of(40)
    params = SamplingParams(max_tokens=6, seed=0, temperature=0.0, logprobs=2, prompt_logprobs=2)
    whole = run(driver, prompt, params)
    for at in range(1, 6):
        rest = run(driver, prompt, params, whole.outputs[:at], budget=16)
        assert not rest.prompt_logprobs
        assert_near(joined(rest.logprobs), joined(whole.logprobs[at:]))


def test_the_same_in_a_crowd_as_alone(driver: Driver) -> None:
    """Next to requests that ask for more, for less and for nothing."""
    asking = {
        f"r{index}": SamplingParams(
            max_tokens=3 + index % 4,
            seed=index,
            temperature=index % 3 / 2,
            logprobs=(None, 0, 4, 20)[index % 4],
            prompt_logprobs=(20, None, 1)[index % 3],
            presence_penalty=index % 2,
        )
        for index in range(24)
    }
    for index, (name, params) in enumerate(asking.items()):
        driver.add(name, prompt_of(5 + 3 * index), params)
    driver.run(budget=50)
    crowd = dict(driver.done)
    for index, (name, params) in enumerate(asking.items()):
        alone = run(driver, prompt_of(5 + 3 * index), params)
        assert crowd[name].outputs == alone.outputs
        assert len(alone.logprobs) == (0 if params.logprobs is None else params.max_tokens)
        assert_near(joined(crowd[name].logprobs), joined(alone.logprobs))
        assert len(alone.prompt_logprobs) == (params.prompt_logprobs is not None)
        for mine, yours in zip(crowd[name].prompt_logprobs, alone.prompt_logprobs, strict=True):
            assert_near(mine, yours)


def test_a_prompt_that_is_not_computed_from_its_start_fails(tmp_path: Path) -> None:
    """The scheduler must not take its beginning from the prefix cache."""
    worker = Driver.load(save(llama(), tmp_path)).worker
    params = SamplingParams(max_tokens=1, seed=0, prompt_logprobs=0)
    step = StepInput([], [NewRow("r", packed(prompt_of(20)), 20, params)], [ScheduledRow("r", 8, 12, [[1, 2, 3]])])
    output = worker.execute(step)
    assert output.token_ids == [[]]
    assert output.failed[0].startswith("AssertionError: ")
    assert "tokens not computed" in output.failed[0]
    assert output.prompt_logprobs == {}
