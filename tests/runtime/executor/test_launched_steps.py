"""A device that computes while the engine goes on: its steps overlap, and answers are those of plain steps.

No device is at hand. The device of these tests computes at once, on the CPU, and sends its tokens to the host only
when they are waited for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from kvasir.config.speculation import Speculation
from kvasir.engine import build
from kvasir.engine.scheduling.step_drafts import Drafter
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.request.params import SamplingParams
from kvasir.worker import worker
from runtime.engine.oracle import Oracle
from runtime.executor.split_engine import SplitEngine
from runtime.executor.split_runs import ACTIONS, Action, assert_same_until_aborted, play
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings
from runtime.worker.late_copies import LateCopies

LIMITS = {"num_blocks": 14, "max_num_batched_tokens": 24, "max_num_seqs": 8}


@dataclass(frozen=True)
class Engines:
    whole: SplitEngine
    launching: SplitEngine
    copies: LateCopies


def launching(
    model: ModelInfo, copies: LateCopies, overlapped: bool, drafter: Drafter | None = None
) -> SplitEngine:
    speculation = drafter and Speculation("ngram", 5, max_step_rows=20, prompt_lookup_min=1, prompt_lookup_max=5)
    settings = engine_settings(**LIMITS, async_scheduling=overlapped, speculation=speculation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "HostCopies", lambda device: copies)
        patch.setattr(build, "make_drafter", lambda speculation: drafter)
        return SplitEngine(model, settings, InProcessExecutor(settings, model, launches=True))


@pytest.fixture(scope="module", params=[False, True], ids=["one-in-flight", "overlapped"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    model = load_model_info(save(llama(), tmp_path_factory.mktemp("llama")))
    copies = LateCopies()
    both = Engines(SplitEngine(model, engine_settings(**LIMITS)), launching(model, copies, request.param), copies)
    yield both
    both.whole.close()
    both.launching.close()


@pytest.fixture(scope="module", params=[False, True], ids=["one-in-flight", "overlapped"])
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    model = load_model_info(save(llama(), tmp_path_factory.mktemp("llama")))
    copies, whole = LateCopies(), SplitEngine(model, engine_settings(**LIMITS))
    oracle = Oracle(lambda asked: whole.answers[asked.request_id].tokens)
    both = Engines(whole, launching(model, copies, request.param, oracle), copies)
    yield both
    assert oracle.accepted[False] > 100
    assert oracle.num_rejected > 100
    both.whole.close()
    both.launching.close()


@hypothesis_settings(max_examples=15, deadline=None, derandomize=True)
@given(actions=ACTIONS)
def test_launched_drafts_change_no_answer(drafting: Engines, actions: list[Action]) -> None:
    play(drafting.whole, actions)
    play(drafting.launching, actions)
    assert_same_until_aborted(drafting.launching, drafting.whole)


@hypothesis_settings(max_examples=30, deadline=None, derandomize=True)
@given(actions=ACTIONS)
def test_random_requests_are_answered_as_by_plain_steps(engines: Engines, actions: list[Action]) -> None:
    play(engines.whole, actions)
    play(engines.launching, actions)
    assert_same_until_aborted(engines.launching, engines.whole)


OVERLAPPED = [
    "start 1",
    "start 2",
    "wait 1",
    "start 3",
    "wait 2",
    "start 4",
    "wait 3",
    "start 5",
    "wait 4",
    "wait 5",
]
AWAITED = ["start 1", "wait 1", "start 2", "wait 2", "start 3", "wait 3", "start 4", "wait 4", "start 5", "wait 5"]
RULES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "none": ({}, OVERLAPPED),
    "penalties": ({"frequency_penalty": 2.0, "presence_penalty": -1.3, "repetition_penalty": 1.3}, OVERLAPPED),
    "fixed-tokens": (
        {"logit_bias": ((9, 3.0),), "allowed_token_ids": tuple(range(64)), "bad_words": ((7,),), "min_tokens": 3},
        OVERLAPPED,
    ),
    "bad-words": ({"bad_words": ((7, 8),), "repetition_penalty": 1.3}, AWAITED),
}
"""Rules of a request, and the copies of 5 steps. Only bad words of several tokens depend on all tokens."""


@pytest.mark.parametrize("rules", RULES)
def test_only_rules_that_need_all_tokens_wait_for_them(tmp_path: Path, rules: str) -> None:
    changes, expected = RULES[rules]
    model = load_model_info(save(llama(), tmp_path))
    params = SamplingParams(max_tokens=5, seed=1, ignore_eos=True, **changes)
    copies = LateCopies()
    answers = []
    for engine in (SplitEngine(model, engine_settings()), launching(model, copies, overlapped=True)):
        copies.trace.clear()  # of the steps that warm it up
        engine.add("a", range(2, 12), params)
        engine.run()
        answers.append(engine.answers["a"].tokens)
        engine.close()
    started = [int(event.split()[1]) for event in copies.trace if event.startswith("start")]
    names = {number: place for place, number in enumerate(started, 1)}
    assert [f"{word} {names[int(number)]}" for word, number in map(str.split, copies.trace)] == expected
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5
