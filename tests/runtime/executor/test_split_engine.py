import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.process.failures import FailureError, failure_of
from kvasir.request.params import SamplingParams
from kvasir_contract.reasons import Reason
from runtime.executor.processes import is_alive, seconds_until_gone
from runtime.executor.split_engine import SplitEngine
from runtime.executor.split_runs import (
    ACTIONS,
    MAX_SECONDS,
    SPLIT_MODELS,
    TEXT,
    Action,
    Engines,
    compute_for_ever,
    play,
    run_long_requests,
    whole_and_split,
)
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings, greedy

TWO = ExecutorConfig(tensor_parallel_size=2, worker_timeout=60.0)
WHOLE_EXPERTS = ExecutorConfig(tensor_parallel_size=2, enable_expert_parallel=True)
CASES = {
    **dict.fromkeys(SPLIT_MODELS, TWO),
    "qwen3-moe-whole-experts": WHOLE_EXPERTS,
}
"""How a model is split, by its name."""


@pytest.fixture(scope="module", params=list(CASES))
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """One process, and two that split the model."""
    name = request.param.removesuffix("-whole-experts")
    with whole_and_split(name, CASES[request.param], tmp_path_factory.mktemp(name)) as both:
        yield both


@hypothesis_settings(max_examples=8, deadline=None, derandomize=True)
@given(actions=ACTIONS)
def test_random_requests_are_answered_as_by_one_process(engines: Engines, actions: list[Action]) -> None:
    whole, split = engines
    play(whole, actions)
    play(split, actions)
    assert split.answers == whole.answers


def test_long_requests_with_a_shared_prompt_match_one_process(engines: Engines) -> None:
    whole, split = engines
    run_long_requests(engines)
    assert split.answers == whole.answers


# ----------------------------------------------------------------------------------------------- memory and threads


@pytest.mark.parametrize(("kv_heads", "factor"), [(2, 2), (1, 1)])
def test_a_rank_keeps_its_own_kv_heads_only(kv_heads: int, factor: int, tmp_path: Path) -> None:
    """Each worker has the whole size, so blocks of half the heads are twice as many."""
    model = load_model_info(save(llama(num_key_value_heads=kv_heads), tmp_path))
    found = []
    for executor in (ExecutorConfig(), TWO):
        engine = SplitEngine(model, engine_settings(executor=executor))
        found.append(engine.layout)
        engine.executor.shutdown()
    whole, split = found
    assert split.groups[0].spec.block.num_bytes * factor == whole.groups[0].spec.block.num_bytes
    assert split.num_blocks // whole.num_blocks == factor


def test_no_process_keeps_the_file_of_the_rendezvous(engines: Engines) -> None:
    executor = engines[1].executor
    assert isinstance(executor, MultiprocessExecutor)
    for pid in (os.getpid(), *executor.pids):
        assert not [name for name in open_files(pid) if "kvasir-rendezvous" in name]


def open_files(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of this listing
            found.append(os.readlink(descriptor))
    assert len(found) > 3
    return found


def test_overlapped_steps_are_answered_as_by_one_process(tmp_path: Path) -> None:
    model = load_model_info(save(llama(), tmp_path))
    found = []
    for executor in (ExecutorConfig(), TWO):
        engine = SplitEngine(model, engine_settings(num_blocks=14, async_scheduling=True, executor=executor))
        assert engine.executor.max_in_flight == 2
        for index in range(5):
            params = SamplingParams(max_tokens=60, seed=index, temperature=index % 2, ignore_eos=True)
            engine.add(str(index), TEXT[: 25 + index], params)
        engine.run()
        assert engine.num_preemptions > 0
        engine.executor.shutdown()
        found.append(engine.answers)
    assert found[0] == found[1]


def test_the_demo_model_in_bfloat16_answers_as_by_one_process() -> None:
    path = fetch("demo://", weights=True)
    tokenizer, template = load_tokenizer(path), ChatTemplate.load(path)
    assert template is not None
    questions = ["How do I install Kvasir?", "How do I start Kvasir?", "What is an engine?"]
    texts = [template.render([{"role": "user", "content": question}]) for question in questions]
    found = []
    for executor in (ExecutorConfig(), TWO):
        engine = SplitEngine(load_model_info(path), engine_settings(dtype="bfloat16", executor=executor))
        for text in texts:
            engine.add(text, tokenizer.encode(text, add_special_tokens=False), greedy(24))
        engine.run()
        engine.executor.shutdown()
        found.append(engine.answers)
    assert found[0] == found[1]


# --------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("victim", [0, 1])
def test_worker_killed_in_a_step_ends_all_at_once(victim: int, tmp_path: Path) -> None:
    engine = SplitEngine(load_model_info(save(llama(), tmp_path)), engine_settings(executor=TWO))
    assert isinstance(engine.executor, MultiprocessExecutor)
    workers = engine.executor.pids
    threading.Timer(0.05, os.kill, [workers[victim], signal.SIGKILL]).start()
    with pytest.raises(
        FailureError, match=rf"worker {victim} was killed by SIGKILL in phase (prefill|decode|idle)"
    ):
        compute_for_ever(engine)
    assert seconds_until_gone(workers, MAX_SECONDS) < MAX_SECONDS
    engine.executor.shutdown()


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        (3, r"3 does not divide num_attention_heads = 4 .* choose 1 or 2 or 4"),
        (2, r"--enable-expert-parallel: LlamaForCausalLM has no experts here: leave it out"),
    ],
)
def test_a_split_that_the_workers_refuse_names_the_number(
    ranks: int, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One worker checks before they join: the weights are not read."""
    model = load_model_info(save(llama(), tmp_path))
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    config = ExecutorConfig(tensor_parallel_size=ranks, enable_expert_parallel=ranks == 2)
    executor = MultiprocessExecutor(engine_settings(executor=config), model)
    with pytest.raises(ConfigError, match=reason) as raised:
        executor.start(lambda done, total: None, failed=lambda error: None)
    assert failure_of(raised.value).reason is Reason.INVALID_SPEC
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "worker 0 failed in phase start; all workers are killed"
    ]
    executor.shutdown()
    assert not any(map(is_alive, executor.pids))
