from pathlib import Path

import pytest

from kvasir.executor.base import Executor
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model import load_model_info
from runtime.models.tiny import llama, save
from runtime.worker.driver import Driver, engine_settings, greedy


def test_it_does_what_its_worker_does(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    settings = engine_settings()
    executor: Executor = InProcessExecutor(settings, load_model_info(path))
    seen: list[tuple[int, int]] = []
    executor.load(lambda done, total: seen.append((done, total)))
    blocks = executor.allocate_kv_cache()
    executor.warm_up()
    driver = Driver(executor, blocks, settings.block_size)
    reference = Driver.load(path)
    for run in (driver, reference):
        run.add("r", range(2, 30), greedy(6))
    assert driver.run() == reference.run()
    assert seen[-1][0] == seen[-1][1] > 0


def test_shutdown_may_come_at_any_time_and_twice(tmp_path: Path) -> None:
    executor = InProcessExecutor(engine_settings(), load_model_info(save(llama(), tmp_path)))
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(AssertionError, match="shut down"):
        executor.check_idle()
