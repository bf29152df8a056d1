"""A request's draws depend on its seed and its own tokens only: not on the batch, the chunks or an interruption."""

from pathlib import Path

import pytest
import torch

from kvasir.request.params import SamplingParams
from runtime.models.tiny import VOCAB, llama, save
from runtime.worker.driver import Driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver.load(save(llama(), tmp_path_factory.mktemp("llama")), max_num_seqs=100)


def prompt_of(length: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


KINDS = [
    SamplingParams(max_tokens=20, seed=11, temperature=1.0),
    SamplingParams(max_tokens=20, seed=-5, temperature=3.0, top_k=20),
    SamplingParams(max_tokens=20, seed=2**62, temperature=2.0, top_p=0.7),
    SamplingParams(max_tokens=20, seed=0, temperature=0.7, top_k=40, top_p=0.95),
    SamplingParams(max_tokens=20, seed=1, temperature=2.0, min_p=0.05),
    SamplingParams(max_tokens=20, seed=1, temperature=2.0, min_p=0.01, top_p=0.9),
    SamplingParams(max_tokens=20, seed=1, temperature=3.0, min_tokens=12, stop_token_ids=tuple(range(128))),
    SamplingParams(max_tokens=20, seed=2, temperature=1.5, repetition_penalty=1.3, top_k=30),
    SamplingParams(max_tokens=20, seed=3, frequency_penalty=0.8, presence_penalty=-0.5, logit_bias=((9, 5.0),)),
    SamplingParams(max_tokens=20, seed=4, allowed_token_ids=(5, 6, 7, 8), bad_words=((5,), (6, 7), (7, 8, 6))),
    SamplingParams(max_tokens=20, seed=0, temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(max_tokens=20, seed=0, temperature=0.0),
]


def alone(driver: Driver, params: SamplingParams) -> list[int]:
    driver.add("alone", prompt_of(25), params)
    return driver.run()["alone"]


def test_the_same_in_a_crowd_of_mixed_parameters(driver: Driver) -> None:
    for repeat in range(6):
        for kind, params in enumerate(KINDS):
            other = SamplingParams(max_tokens=5 + repeat, seed=repeat, temperature=1.5, top_p=0.5 + repeat / 10)
            driver.add(f"other-{repeat}-{kind}", prompt_of(3 + 7 * repeat + kind), other)
            if repeat == 3:
                driver.add(f"kind-{kind}", prompt_of(25), params)
    crowd = driver.run(budget=64)
    for kind, params in enumerate(KINDS):
        assert crowd[f"kind-{kind}"] == alone(driver, params)


def test_the_same_when_preempted_or_continued_elsewhere(driver: Driver) -> None:
    for params in KINDS:
        whole = alone(driver, params)
        driver.add("preempted", prompt_of(25), params)
        for _ in range(4):
            driver.step()
        driver.preempt("preempted")
        driver.add("continued", prompt_of(25), params, outputs=whole[:9])
        assert driver.run(budget=32) == {"preempted": whole, "continued": whole}


def test_other_seeds_draw_other_tokens(driver: Driver) -> None:
    drawn = {tuple(alone(driver, SamplingParams(max_tokens=20, seed=seed, temperature=2.0))) for seed in range(20)}
    assert len(drawn) == 20


def test_temperature_0_is_greedy_whatever_the_filters(driver: Driver) -> None:
    filtered = SamplingParams(max_tokens=20, seed=3, temperature=0.0, top_k=5, top_p=0.2)
    assert alone(driver, filtered) == alone(driver, KINDS[-1])


def test_bad_words_and_tokens_not_allowed_never_come(driver: Driver) -> None:
    bad_words = ((5,), (6, 7), (7, 8, 6), (8, 8, 8))
    params = SamplingParams(
        max_tokens=200, seed=4, temperature=50.0, allowed_token_ids=(5, 6, 7, 8), bad_words=bad_words
    )
    outputs = alone(driver, params)
    assert set(outputs) == {6, 7, 8}
    for word in bad_words:
        for place in range(len(outputs)):
            assert tuple(outputs[place : place + len(word)]) != word


def test_end_of_sequence_and_stop_tokens_wait_for_min_tokens(driver: Driver) -> None:
    """The tiny model's end-of-sequence token is 1; the engine, which would stop at it, is not here."""
    bias = ((1, 100.0), (3, 100.0))
    params = SamplingParams(max_tokens=20, seed=4, min_tokens=7, stop_token_ids=(3,), logit_bias=bias)
    outputs = alone(driver, params)
    assert {1, 3}.isdisjoint(outputs[:7])
    assert {1, 3}.issuperset(outputs[7:])


def test_first_tokens_are_drawn_by_their_probability(driver: Driver, tmp_path: Path) -> None:
    """Through the whole worker: 2,000 seeds against the distribution that a float32 softmax gives."""
    prompt = prompt_of(12)
    reference = llama()
    with torch.inference_mode():
        probabilities = (reference(torch.tensor([prompt])).logits[0, -1] / 2.5).softmax(-1).double()
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    for start in range(0, 2000, 40):
        for seed in range(start, start + 40):
            driver.add(str(seed), prompt, SamplingParams(max_tokens=1, seed=seed, temperature=2.5))
        for outputs in driver.run().values():
            counts[outputs[0]] += 1
    likely = probabilities * 2000 >= 5
    expected = torch.cat((probabilities[likely], probabilities[~likely].sum()[None])) * 2000
    seen = torch.cat((counts[likely], counts[~likely].sum()[None]))
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert freedom > 10
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5
