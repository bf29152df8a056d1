import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.executor.executor import Executor
from kvasir.executor.in_process import InProcessExecutor
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.executor.processes.worker_messages import MAX_PACKET_BYTES, WorkerSetup
from kvasir.hub.model_info import load_model_info
from kvasir.process.failures import FailureError, failure_of
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.step import LateInput, NewRow, ScheduledRow, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from runtime.executor.processes import is_alive
from runtime.models.tiny import llama, save
from runtime.worker.driver import Driver, Submits, engine_settings, greedy
from runtime.worker.plugins import install_plugins

BLOCKS = 200
WAIT = 60.0


def started(executor: Executor) -> Executor:
    executor.start(lambda done, total: None, failed=lambda error: None)
    executor.allocate_kv_cache(BLOCKS, max_model_len=512)
    executor.warm_up()
    return executor


class Recorded(Submits):
    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.outputs: list[StepOutput] = []

    def execute(self, step: StepInput) -> StepOutput:
        self.outputs.append(super().execute(step))
        return self.outputs[-1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def both(path: Path) -> Iterator[tuple[Executor, Executor]]:
    """One worker in this process, and two worker processes."""
    model = load_model_info(path)
    here = started(InProcessExecutor(engine_settings(), model))
    there = started(MultiprocessExecutor(engine_settings(), model, num_workers=2))
    yield here, there
    here.shutdown()
    there.shutdown()


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 8),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logprobs=st.sampled_from([None, 0, 3]),
    prompt_logprobs=st.sampled_from([None, 2]),
    logit_bias=st.sampled_from([(), ((7, 2.5),)]),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(2, 250), min_size=1, max_size=60), PARAMS),
        st.tuples(st.just("step"), st.integers(8, 40), st.none()),
        st.tuples(st.just("preempt"), st.integers(0, 3), st.none()),
    ),
    max_size=20,
)


def drive(driver: Driver, actions: list[tuple[str, Any, Any]]) -> dict[str, list[int]]:
    """Run the actions, then everything that is left; return the tokens of each request."""
    driver.drafter = lambda request: request.tokens[:3]
    live: list[str] = []
    done: dict[str, list[int]] = {}
    for number, (action, value, params) in enumerate(actions):
        if action == "add":
            live.append(f"r{number}")
            driver.add(live[-1], value, params)
        elif action == "step":
            driver.step(value)
            finished = driver.finish()
            done |= finished
            live = [name for name in live if name not in finished]
        elif live and live[value % len(live)] not in driver.waiting:
            driver.preempt(live[value % len(live)])
    return done | driver.run(64)


@hypothesis_settings(max_examples=30, deadline=None)
@given(actions=ACTIONS)
def test_random_steps_give_the_outputs_of_one_process(
    both: tuple[Executor, Executor], actions: list[tuple[str, Any, Any]]
) -> None:
    here, there = (Recorded(executor) for executor in both)
    tokens = [drive(Driver(each, BLOCKS, 8), actions) for each in (here, there)]
    assert tokens[0] == tokens[1]
    assert here.outputs == there.outputs


def test_step_with_masked_rows_samples_when_it_has_its_masks(path: Path) -> None:
    """Frames of later steps may come before the masks."""
    executor = started(MultiprocessExecutor(engine_settings(async_scheduling=True), load_model_info(path)))
    first = StepInput(
        [],
        [NewRow("r", packed(range(2, 30)), 28, greedy(3))],
        [ScheduledRow("r", 0, 28, [[1, 2, 3, 4]])],
        number=1,
        masked=(0,),
    )
    others = [StepInput([], [], [ScheduledRow("r", 28 + place, 1, [])], 2 + place, masked=(0,)) for place in (0, 1)]
    pending = [executor.submit(step) for step in (first, *others)]
    with pytest.raises(AssertionError, match="not supplied"):
        pending[0].result()
    for number in (1, 2, 3):
        executor.supply(LateInput(number, (1 << 40 + number).to_bytes(256 // 8, "little")))
        assert pending[number - 1].result().token_ids == [[40 + number]]
    assert executor.submit(StepInput(["r"], [], [], 4)).result() == StepOutput([])
    executor.check_idle()
    executor.shutdown()


def test_steps_in_flight_are_answered_in_their_order(path: Path) -> None:
    executor = started(MultiprocessExecutor(engine_settings(async_scheduling=True), load_model_info(path)))
    assert executor.max_in_flight == 2
    driver = Driver.load(path)
    driver.add("r", range(2, 30), greedy(3))
    expected = driver.run()["r"]
    first = StepInput(
        [],
        [NewRow("r", packed(range(2, 30)), 28, greedy(3))],
        [ScheduledRow("r", 0, 28, [[1, 2, 3, 4]])],
    )
    others = [StepInput([], [], [ScheduledRow("r", 28 + place, 1, [])]) for place in range(2)]
    pending = [executor.submit(step) for step in (first, *others)]
    assert [result.error for result in executor.call(WorkerCall("unknown"))] == [
        "CallError: no call 'unknown': there are start_profile, stop_profile; --worker-extension-cls adds calls"
    ]
    assert [each.result().token_ids[0][0] for each in pending] == expected
    executor.shutdown()


def test_progress_is_the_sum_over_all_workers(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    executor = MultiprocessExecutor(engine_settings(), load_model_info(path), num_workers=2)
    executor.start(lambda done, total: seen.append((done, total)), failed=lambda error: None)
    executor.shutdown()
    done, total = seen[-1]
    assert done == total
    assert total == 2 * seen[0][1]


@pytest.mark.parametrize("submitted", [False, True])
def test_a_step_that_raises_ends_all_workers(path: Path, submitted: bool) -> None:
    failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    executor = MultiprocessExecutor(engine_settings(), load_model_info(path), num_workers=2)
    executor.start(lambda done, total: None, failed=failures.put)
    executor.allocate_kv_cache(BLOCKS, max_model_len=512)
    workers = executor.pids
    message = "worker [01] failed in phase decode: KeyError: 'absent'"
    pending = executor.submit(StepInput(["absent"], [], []))
    if submitted:
        with pytest.raises(FailureError, match=message):
            pending.result()
    error = failures.get(timeout=WAIT)
    assert failure_of(error).reason is Reason.CRASH_LOOPING
    for use in (executor.check_idle, executor.kv_layout, lambda: executor.submit(StepInput([], [], []))):
        with pytest.raises(FailureError, match=message):
            use()
    executor.shutdown()
    executor.shutdown()
    assert not any(map(is_alive, workers))


def test_workers_that_sample_different_tokens_end_the_engine(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugins(tmp_path, monkeypatch)
    settings = engine_settings(executor=ExecutorConfig(worker_cls="drifting", tensor_parallel_size=2))
    executor = started(MultiprocessExecutor(settings, load_model_info(path)))
    row = NewRow("r", packed(range(2, 30)), 28, greedy(3))
    pending = executor.submit(StepInput([], [row], [ScheduledRow("r", 0, 28, [[1, 2, 3, 4]])]))
    with pytest.raises(FailureError, match="worker 0 and worker 1 sampled different tokens"):
        pending.result()
    executor.shutdown()


@pytest.mark.parametrize(
    ("action", "failure"),
    [
        ("reject load", Failure(Reason.INVALID_SPEC, "--threads 7 does not fit")),
        ("raise load", Failure(Reason.CRASH_LOOPING, "worker 0 failed in phase load: RuntimeError: as asked")),
        (
            "reset load",
            Failure(Reason.CRASH_LOOPING, "worker 0 failed in phase load: ConnectionResetError: as asked"),
        ),
        (
            "raise warm-up",
            Failure(Reason.CRASH_LOOPING, "worker 0 failed in phase warm-up: RuntimeError: as asked"),
        ),
    ],
)
def test_an_error_during_the_start_is_the_engines_own(
    path: Path, action: str, failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugins(tmp_path, monkeypatch)
    monkeypatch.setenv("TEST_ACTION", action)
    settings = engine_settings(executor=ExecutorConfig(worker_cls="held"))
    executor = MultiprocessExecutor(settings, load_model_info(path))
    with pytest.raises(ConfigError if action == "reject load" else FailureError) as raised:
        started(executor)
    assert failure_of(raised.value) == failure
    executor.shutdown()


@pytest.mark.parametrize("loss", ["Connection closed by peer [127.0.0.1]:1", "writev [127.0.0.1]:1: Broken pipe"])
def test_the_failure_of_a_peer_that_is_lost_is_the_cause(
    loss: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker notices the loss first."""
    install_plugins(tmp_path, monkeypatch)
    monkeypatch.setenv("TEST_LOSS", loss)
    monkeypatch.setenv("TEST_ACTION", "lose-peer warm-up")
    settings = engine_settings(executor=ExecutorConfig(worker_cls="held", tensor_parallel_size=2))
    executor = MultiprocessExecutor(settings, load_model_info(path))
    with pytest.raises(FailureError, match=r"^worker 0 failed in phase warm-up: RuntimeError: as asked"):
        started(executor)
    executor.shutdown()


def test_a_child_of_a_worker_does_not_hide_its_death(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has inherited the sockets of the worker, and ends 5 s later."""
    install_plugins(tmp_path, monkeypatch)
    monkeypatch.setenv("TEST_ACTION", "fork-and-die load")
    settings = engine_settings(executor=ExecutorConfig(worker_cls="held"))
    executor = MultiprocessExecutor(settings, load_model_info(path))
    with pytest.raises(FailureError, match=r"^worker 0 was killed by SIGKILL in phase load for [0-3]\.\d s"):
        started(executor)
    executor.shutdown()


def test_a_death_is_noticed_without_an_exit_status(path: Path) -> None:
    """A program that ignores SIGCHLD passes that on to the engine that it starts."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        executor = MultiprocessExecutor(engine_settings(), load_model_info(path), num_workers=2)
        executor.start(lambda done, total: None, failed=failures.put)
        os.kill(executor.pids[1], signal.SIGKILL)
        assert str(failures.get(timeout=WAIT)).startswith("worker 1 ended in phase idle")
        executor.shutdown()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_config_that_is_too_large_for_a_worker_is_refused(path: Path) -> None:
    """The worker would wait for its settings, and the engine for the worker."""
    model = load_model_info(path)
    model = replace(model, config=model.config | {"id2label": "x" * MAX_PACKET_BYTES})
    executor = MultiprocessExecutor(engine_settings(), model)
    with pytest.raises(ConfigError, match=r"config\.json .* at most [0-9]+ can be sent"):
        executor.start(lambda done, total: None, failed=lambda error: None)
    executor.shutdown()


def test_too_little_memory_in_a_worker_names_the_option(path: Path) -> None:
    executor = MultiprocessExecutor(engine_settings(kv_cache_memory_bytes=1000), load_model_info(path))
    executor.start(lambda done, total: None, failed=lambda error: None)
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes") as raised:
        executor.kv_layout()
    assert failure_of(raised.value).reason is ConfigError.reason
    executor.shutdown()


class SilentWorker:
    """A worker that never reads a frame."""

    rank, pid, is_stopped = 0, 0, False

    def __init__(self, setup: WorkerSetup, threads: int) -> None:
        self.ended = threading.Event()
        self.ended.set()
        self._held = [os.dup(descriptor) for descriptor in setup.handle.descriptors]

    def watch(self, *arguments: object) -> None: ...

    def place(self) -> str:
        return "its place"

    def dismiss(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def test_call_without_a_reply_is_named(path: Path) -> None:
    settings = engine_settings()
    settings = replace(settings, executor=replace(settings.executor, worker_timeout=0.1))
    executor = MultiprocessExecutor(settings, load_model_info(path), start_worker=SilentWorker)
    executor._local.start(None)
    with pytest.raises(FailureError, match=r"no reply to the call check_idle within 0.1 s: worker 0 .* its place"):
        executor.check_idle()
    executor.shutdown()


def test_shutdown_may_come_before_the_start(path: Path) -> None:
    executor = MultiprocessExecutor(engine_settings(), load_model_info(path))
    executor.shutdown()
    with pytest.raises(AssertionError, match="not started"):
        executor.check_idle()
