import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import profile

from kvasir.config.profiler import ProfilerConfig
from kvasir.executor.in_process import InProcessExecutor
from kvasir.hub.model_info import load_model_info
from kvasir.worker.profiler import Profiler, phase
from kvasir.worker.worker_calls import CallError, WorkerCall
from runtime.models.tiny import llama, save
from runtime.worker.driver import Driver, Submits, engine_settings, greedy


def profiler(folder: Path, **options: Any) -> Profiler:
    return Profiler(ProfilerConfig("torch", str(folder), **options), "cpu", "rank0-0-0")


def test_a_trace_has_the_phases_of_the_steps_in_between(tmp_path: Path) -> None:
    settings = engine_settings(profiler=ProfilerConfig("torch", str(tmp_path / "new" / "traces")))
    executor = InProcessExecutor(settings, load_model_info(save(llama(), tmp_path)))
    executor.start(lambda done, total: None, failed=lambda error: None)
    blocks = executor.kv_layout().num_blocks
    executor.allocate_kv_cache(blocks, max_model_len=256)
    driver = Driver(Submits(executor), blocks, settings.block_size)

    def run(name: str) -> None:
        driver.add(name, range(2, 9), greedy(4))
        driver.run()

    run("before")
    [started] = executor.call(WorkerCall("start_profile"))
    run("during")
    [stopped] = executor.call(WorkerCall("stop_profile"))
    run("after")
    assert (started.error, stopped.error) == ("", "")
    with gzip.open(stopped.value) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [names.count(name) for name in ("inputs", "forward", "logits", "sample")] == [4] * 4
    executor.shutdown()


def test_a_profile_ends_by_itself_and_is_written_by_the_stop(tmp_path: Path) -> None:
    profiles = profiler(tmp_path, max_iterations=2, torch_profiler_use_gzip=False)
    profiles.start_profile()
    for step in range(4):
        with phase(f"step {step}"):
            pass
        profiles.after_step()
    path = Path(profiles.stop_profile())
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["name"].startswith("step")] == ["step 0", "step 1"]
    with pytest.raises(CallError, match="no profile is recorded: start one first"):
        profiles.stop_profile()


def test_profiles_that_cannot_be_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="start the engine with --profiler-config"):
        Profiler(None, "cpu", "rank0").start_profile()
    profiles = profiler(tmp_path)
    with pytest.raises(CallError, match="start one first"):
        profiles.stop_profile()
    profiles.start_profile()
    with pytest.raises(CallError, match="stop it first"):
        profiles.start_profile()
    profiles.stop_profile()
    (tmp_path / "file").touch()
    with pytest.raises(CallError, match=r"torch_profiler_dir cannot be used: .*file"):
        profiler(tmp_path / "file").start_profile()


def test_steps_go_on_if_a_profile_cannot_be_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = profiler(tmp_path, max_iterations=1)
    profiles.start_profile()
    stop = profile.stop
    monkeypatch.setattr(profile, "stop", lambda each: (stop(each), each.no_such_attribute))
    with caplog.at_level(logging.ERROR):
        profiles.after_step()
    assert "the profile could not be ended" in caplog.text


def test_an_unwritable_profile_is_an_error_with_the_cause(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    profiles = profiler(folder)
    profiles.start_profile()
    folder.rmdir()
    with pytest.raises(CallError, match="the profile could not be written"):
        profiles.stop_profile()
    profiles.start_profile()
    profiles.stop_profile()
