"""The steps that compile the kernels of a GPU are steps that every worker can execute."""

from pathlib import Path

import pytest

from kvasir.worker.dummy import kernel_steps
from runtime.models.tiny import llama, save
from runtime.worker.driver import Driver, greedy


@pytest.mark.parametrize("context", [1, 2, 200])
def test_they_succeed_and_leave_no_row(context: int, tmp_path: Path) -> None:
    driver = Driver.load(save(llama(), tmp_path))
    worker = driver.worker
    driver.add("a", [5, 6, 7], greedy(4))
    expected = driver.run()["a"]
    groups = worker._groups  # type: ignore[attr-defined]
    for step in kernel_steps(context, 4, groups):
        assert not worker.execute(step).failed
    worker.check_idle()
    driver.add("b", [5, 6, 7], greedy(4))
    assert driver.run()["b"] == expected
