import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kvasir.executor.executor import Executor
from kvasir.executor.in_process import InProcessExecutor
from kvasir.executor.thread_count import ThreadCount
from kvasir.hub.model_info import load_model_info
from kvasir.request.tokens import packed
from kvasir.worker.step import LateInput, NewRow, ScheduledRow, StepInput
from kvasir.worker.worker import Worker
from runtime.models.tiny import llama, save
from runtime.worker.driver import Driver, Submits, engine_settings, greedy


def started(executor: Executor, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Start the executor with all the blocks that it has memory for; return their number."""
    executor.start(progress, failed=lambda error: None)
    blocks = executor.kv_layout().num_blocks
    executor.allocate_kv_cache(blocks, max_model_len=512)
    return blocks


def only(token: int) -> bytes:
    """The mask of a row that may choose one token of the 256 of a tiny model."""
    return (1 << token).to_bytes(256 // 8, "little")


def test_it_does_what_its_worker_does(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    settings = engine_settings()
    executor: Executor = InProcessExecutor(settings, load_model_info(path))
    seen: list[tuple[int, int]] = []
    blocks = started(executor, lambda done, total: seen.append((done, total)))
    executor.warm_up()
    driver = Driver(Submits(executor), blocks, settings.block_size)
    reference = Driver.load(path)
    for run in (driver, reference):
        run.add("r", range(2, 30), greedy(6))
    assert driver.run() == reference.run()
    assert seen[-1][0] == seen[-1][1] > 0


def test_without_overlap_a_step_is_computed_when_it_is_submitted(tmp_path: Path) -> None:
    executor = InProcessExecutor(engine_settings(), load_model_info(save(llama(), tmp_path)))
    started(executor)
    assert executor.max_in_flight == 1
    assert executor.submit(StepInput([], [], [])).done()
    with pytest.raises(KeyError):
        executor.submit(StepInput(["nobody"], [], []))
    executor.shutdown()


def test_submitted_steps_run_in_order_with_earlier_tokens(tmp_path: Path) -> None:
    """The second and the third step are submitted before the first one has sampled."""
    path = save(llama(), tmp_path)
    prompt = list(range(2, 30))
    reference = Driver.load(path)
    reference.add("r", prompt, greedy(3))
    executor = InProcessExecutor(engine_settings(async_scheduling=True), load_model_info(path))
    started(executor)
    first = StepInput(
        [],
        [NewRow("r", packed(prompt), len(prompt), greedy(3))],
        [ScheduledRow("r", 0, len(prompt), [[1, 2, 3, 4]])],
    )
    others = [StepInput([], [], [ScheduledRow("r", len(prompt) + place, 1, [])]) for place in range(2)]
    futures = [executor.submit(step) for step in (first, *others)]
    assert [future.result().token_ids[0][0] for future in futures] == reference.run()["r"]
    with pytest.raises(KeyError):
        executor.submit(StepInput(["nobody"], [], [])).result()
    executor.shutdown()


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_step_with_masked_rows_samples_when_it_has_its_masks(overlapped: bool, tmp_path: Path) -> None:
    executor = InProcessExecutor(
        engine_settings(async_scheduling=overlapped), load_model_info(save(llama(), tmp_path))
    )
    started(executor)
    new = [NewRow(name, packed([5, 6, 7]), 3, greedy(3)) for name in "ab"]
    rows = [ScheduledRow(name, 0, 3, [[place + 1]]) for place, name in enumerate("ab")]
    free = executor.submit(StepInput([], new, rows, number=1)).result().token_ids
    step = StepInput(["a", "b"], new, rows, number=2, masked=(1,))
    submitted = executor.submit(step)
    with pytest.raises(AssertionError, match="not supplied"):
        submitted.result()
    assert not submitted.done()
    executor.supply(LateInput(2, only(9)))
    assert submitted.result().token_ids == [free[0], [9]]
    executor.shutdown()


def test_shutdown_ends_the_wait_for_masks(tmp_path: Path) -> None:
    settings = engine_settings(async_scheduling=True)
    executor = InProcessExecutor(settings, load_model_info(save(llama(), tmp_path)))
    started(executor)
    new, row = NewRow("a", packed([5, 6, 7]), 3, greedy(3)), ScheduledRow("a", 0, 3, [[1]])
    submitted = executor.submit(StepInput([], [new], [row], number=1, masked=(0,)))
    executor.shutdown()
    deadline = time.monotonic() + 60
    while not submitted.done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_step_computes_with_the_count_of_threads(
    overlapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    executor = InProcessExecutor(
        engine_settings(threads=2, yield_threads=True, async_scheduling=overlapped),
        load_model_info(save(llama(), tmp_path)),
    )
    started(executor)
    used = []
    monkeypatch.setattr(Worker, "execute", lambda worker, step: used.append(torch.get_num_threads()))
    monkeypatch.setattr(ThreadCount, "end_step", lambda count: setattr(count, "threads", 3 - count.threads))
    for _ in range(3):
        executor.submit(StepInput([], [], [])).result()
    assert used == [2, 1, 2]
    executor.shutdown()
    torch.set_num_threads(before)


def test_shutdown_may_come_at_any_time_and_twice(tmp_path: Path) -> None:
    executor = InProcessExecutor(engine_settings(), load_model_info(save(llama(), tmp_path)))
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(AssertionError, match="shut down"):
        executor.check_idle()


def test_a_shut_down_executor_keeps_no_weights(tmp_path: Path) -> None:
    executor = InProcessExecutor(engine_settings(), load_model_info(save(llama(), tmp_path)))
    started(executor)
    weights = [weakref.ref(weight) for weight in executor._worker._model.parameters()]  # type: ignore[union-attr]
    executor.shutdown()
    assert weights
    assert all(weight() is None for weight in weights)
