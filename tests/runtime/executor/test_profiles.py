"""Profiles of a whole engine, as its frontends ask for them."""

import gzip
import json
from pathlib import Path

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.profiler import ProfilerConfig
from kvasir.hub.model_info import load_model_info
from kvasir.link.protocol import Call
from runtime.executor.split_engine import SplitEngine
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings, greedy


@pytest.mark.parametrize(("ranks", "overlapped"), [(1, False), (1, True), (2, False)])
def test_each_worker_writes_a_profile(ranks: int, overlapped: bool, tmp_path: Path) -> None:
    settings = engine_settings(
        executor=ExecutorConfig(tensor_parallel_size=ranks, worker_timeout=60.0),
        profiler=ProfilerConfig("torch", str(tmp_path / "traces")),
        async_scheduling=overlapped,
    )
    engine = SplitEngine(load_model_info(save(llama(), tmp_path)), settings)
    assert engine.core.call(Call(1, "start_profile")).error == ""
    engine.add("a", range(2, 9), greedy(4))
    engine.run()
    stopped = engine.core.call(Call(2, "stop_profile"))
    assert (stopped.id, stopped.error, len(stopped.values)) == (2, "", ranks)
    for rank, path in enumerate(stopped.values):
        assert Path(path).name.startswith(f"rank0-0-{rank}.")
        with gzip.open(path) as file:
            assert "forward" in {event["name"] for event in json.load(file)["traceEvents"]}
    assert "no profile is recorded" in engine.core.call(Call(3, "stop_profile")).error
    engine.close()
