import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.executor.executor import SubmittedStep
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.process.failures import FailureError
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import NAN_COMPUTED, NO_NEW_BLOCKS, NewRow, ScheduledRow, StepInput
from runtime.executor.processes import seconds_until_gone
from runtime.executor.split_engine import SplitEngine
from runtime.executor.split_runs import (
    ACTIONS,
    MAX_SECONDS,
    SPLIT_MODELS,
    Action,
    Engines,
    assert_same_until_aborted,
    compute_for_ever,
    play,
    run_long_requests,
    whole_and_split,
)
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings, greedy

TWO = ExecutorConfig(pipeline_parallel_size=2, worker_timeout=60.0)
THREE = ExecutorConfig(pipeline_parallel_size=3, worker_timeout=60.0)
FOUR = ExecutorConfig(tensor_parallel_size=2, pipeline_parallel_size=2, worker_timeout=60.0)
CASES = {
    **{name: (name, TWO) for name in SPLIT_MODELS},
    **{f"{name}-of-two-ranks-each": (name, FOUR) for name in SPLIT_MODELS},
}
"""A model, and how it is split."""


@pytest.fixture(scope="module", params=list(CASES))
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """One process, and two stages."""
    name, executor = CASES[request.param]
    with whole_and_split(name, executor, tmp_path_factory.mktemp(name)) as both:
        yield both


@hypothesis_settings(max_examples=4, deadline=None, derandomize=True)
@given(actions=ACTIONS)
def test_random_requests_are_answered_as_by_one_process(engines: Engines, actions: list[Action]) -> None:
    whole, split = engines
    play(whole, actions)
    play(split, actions)
    assert_same_until_aborted(split, whole)


def test_long_requests_with_a_shared_prompt_match_one_process(engines: Engines) -> None:
    whole, split = engines
    run_long_requests(engines)
    assert_same_until_aborted(split, whole)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitEngine]:
    """Three stages with a layer each. Token 7 makes NaN."""
    model = llama()
    with torch.no_grad():
        weight = model.state_dict()["model.embed_tokens.weight"]
        weight[7] = torch.nan
    info = load_model_info(save(model, tmp_path_factory.mktemp("three")))
    engine = SplitEngine(info, engine_settings(num_blocks=100, executor=THREE))
    yield engine
    engine.executor.shutdown()


def test_as_many_steps_as_stages_are_in_flight(three: SplitEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With at least as many requests; and no step has more than its share of them."""
    submitted: list[tuple[StepInput, SubmittedStep]] = []
    in_flight: list[int] = []
    submit = three.executor.submit

    def record(step: StepInput) -> SubmittedStep:
        submitted.append((step, submit(step)))
        in_flight.append(sum(not result.done() for _, result in submitted))
        return submitted[-1][1]

    monkeypatch.setattr(three.executor, "submit", record)
    three.forget()
    for index in range(7):
        three.add(str(index), [5, 6, 8 + index], SamplingParams(max_tokens=20, seed=0, ignore_eos=True))
    three.run()
    assert all(len(answer.tokens) == 20 for answer in three.answers.values())
    sizes = [len(step.scheduled) for step, _ in submitted]
    assert max(in_flight) == 3
    assert in_flight.count(3) >= len(submitted) - 5
    assert max(sizes) == 3
    assert sum(sizes) == 7 * 20


def test_rows_that_fail_are_reported_and_the_others_go_on(three: SplitEngine) -> None:
    """The stages before the last one do not notice, and compute the same rows."""
    executor = three.executor
    prompts = {"nan": [5, 7, 9], "bad": [5, 6, 9], "good": [5, 6, 8]}
    params = {"bad": SamplingParams(max_tokens=9, seed=2**63, temperature=1.0)}
    step = StepInput(
        [],
        [NewRow(name, packed(prompt), 3, params.get(name, greedy(9))) for name, prompt in prompts.items()],
        [ScheduledRow(name, 0, 3, [[place + 1]]) for place, name in enumerate(prompts)],
    )
    first = executor.submit(step).result()
    assert first.failed.keys() == {0, 1}
    assert first.failed[0] == NAN_COMPUTED
    assert "OverflowError" in first.failed[1]
    tokens = [first.token_ids[2][0]]
    for computed in range(3, 6):
        finished = ["nan", "bad"] if computed == 3 else []
        step = StepInput(
            finished,
            [],
            [ScheduledRow("good", computed, 1, NO_NEW_BLOCKS)],
            sampled={"good": tokens[-1:]},
        )
        tokens += executor.submit(step).result().token_ids[0]
    executor.submit(StepInput(["good"], [], [])).result()
    executor.check_idle()
    whole = SplitEngine(three.model, engine_settings())
    whole.add("good", prompts["good"], greedy(4))
    whole.run()
    assert tokens == whole.answers["good"].tokens


def test_cache_has_the_blocks_that_fit_in_every_stage(tmp_path: Path) -> None:
    """The first stage has two of three layers, and each worker has the whole size."""
    model = load_model_info(save(llama(), tmp_path))
    engine = SplitEngine(model, engine_settings(kv_cache_memory_bytes=2**20, executor=TWO))
    engine.executor.shutdown()
    [group] = engine.layout.groups
    assert group.layers == (0, 1, 2)
    assert engine.layout.num_blocks + 1 == 2**20 // (2 * group.spec.block.num_bytes)


@pytest.mark.parametrize(("victim", "name"), [(0, "worker 0 (stage 0)"), (1, "worker 1 (stage 1)")])
def test_worker_killed_in_a_stage_ends_all_at_once(victim: int, name: str, tmp_path: Path) -> None:
    engine = SplitEngine(load_model_info(save(llama(), tmp_path)), engine_settings(executor=TWO))
    assert isinstance(engine.executor, MultiprocessExecutor)
    workers = engine.executor.pids
    threading.Timer(0.05, os.kill, [workers[victim], signal.SIGKILL]).start()
    with pytest.raises(FailureError) as raised:
        compute_for_ever(engine)
    assert str(raised.value).startswith(f"{name} was killed by SIGKILL in phase ")
    assert seconds_until_gone(workers, MAX_SECONDS) < MAX_SECONDS
    engine.executor.shutdown()
