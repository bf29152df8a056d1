from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.executor.executor import Executor
from kvasir.executor.executor_for import executor_for
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.worker.step import StepInput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings
from runtime.worker.plugins import install_plugins


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelInfo:
    (tmp_path / "plugins").mkdir()
    install_plugins(tmp_path / "plugins", monkeypatch)
    return load_model_info(save(llama(), tmp_path))


@pytest.fixture(params=[("uni", False), ("uni", True), ("mp", False)])
def executor(model: ModelInfo, request: pytest.FixtureRequest) -> Iterator[Executor]:
    """In this process with and without overlapped steps, and in a process of its own."""
    backend, overlap = request.param
    config = ExecutorConfig(
        distributed_executor_backend=backend, worker_cls="counting", worker_extension_cls="extension"
    )
    executor = executor_for(engine_settings(executor=config, async_scheduling=overlap), model)
    executor.start(lambda done, total: None, failed=lambda error: None)
    executor.allocate_kv_cache(executor.kv_layout().num_blocks, max_model_len=512)
    yield executor
    executor.shutdown()


def test_calls_reach_the_worker_and_its_extension(executor: Executor) -> None:
    executor.submit(StepInput([], [], []))
    assert executor.call(WorkerCall("steps_so_far")) == [WorkerResult(1)]
    assert executor.call(WorkerCall.of("scaled", values=[1, 2.5], factor=3)) == [WorkerResult([3.0, 7.5])]
    assert executor.call(WorkerCall.of("scaled", values=[1])) == [WorkerResult([2.0])]
    assert executor.call(WorkerCall.of("scaled", [1], 4)) == [WorkerResult([4.0])]
    assert executor.call(WorkerCall.of("scaled", [1], factor=5)) == [WorkerResult([5.0])]
    assert executor.call(WorkerCall("worker_class")) == [WorkerResult("CountingWorker")]
    assert executor.call(WorkerCall("rank")) == [WorkerResult(["rank", 0])]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (WorkerCall("broken"), "RuntimeError: as asked"),
        (WorkerCall("unsendable"), "TypeError: Encoding objects of type CountingWorker is unsupported"),
        (WorkerCall.of("scaled", [1], values=[1]), "CallError: scaled: the parameter values has two arguments"),
        (WorkerCall.of("scaled", [1], 2, 3), "CallError: scaled has 2 parameters, and got 3 arguments"),
        (WorkerCall("hidden"), "CallError: no call 'hidden': there are broken, rank,"),
        (
            WorkerCall.of("allocate_kv_cache", num_blocks=1, max_model_len=8),
            "CallError: no call 'allocate_kv_cache'",
        ),
        (WorkerCall("warm_up"), "CallError: no call 'warm_up': there are broken, rank,"),
        (WorkerCall("__init__"), "CallError: no call '__init__'"),
        (WorkerCall("scaled"), "CallError: scaled: the parameters values are unknown or missing"),
        (WorkerCall.of("scaled", values=[1], other=2), "CallError: scaled: the parameters other are unknown"),
        (
            WorkerCall.of("scaled", values="text"),
            "CallError: scaled: parameter values: Expected `array`, got `str`",
        ),
    ],
)
def test_a_call_that_fails_is_answered_with_its_error(executor: Executor, call: WorkerCall, error: str) -> None:
    [result] = executor.call(call)
    assert result.value is None
    assert result.error.startswith(error)
    assert executor.call(WorkerCall("worker_class"))[0].error == ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            ExecutorConfig(worker_cls="absent"),
            r"--worker-cls absent: .* kvasir.workers \(installed: counting, drifting, held\)",
        ),
        (ExecutorConfig(worker_extension_cls="clash"), "--worker-extension-cls: the worker has a call 'warm_up'"),
    ],
)
def test_unusable_plugins_are_refused_by_name(model: ModelInfo, config: ExecutorConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        executor_for(engine_settings(executor=config), model)
