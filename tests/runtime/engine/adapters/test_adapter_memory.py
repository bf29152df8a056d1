"""Adapters share memory, by number and by bytes, and are read while steps go on."""

import threading
from pathlib import Path

import pytest

from kvasir.engine.adapters.adapter_checks import AdapterChecks
from kvasir.engine.adapters.adapter_gate import AdapterGate
from kvasir.engine.adapters.adapter_memory import AdapterMemory
from kvasir.executor.executor import Executor
from kvasir.hub.adapters.adapter_info import AdapterInfo, read_adapter
from kvasir.link.protocol import AdaptersHeld, RefusalKind
from kvasir.request.adapter import Adapter
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from runtime.engine.adapters.adapter_hub import PROMPT, Hub, add
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.hub.adapters.adapter_files import write_adapter


@pytest.mark.parametrize("is_last", [False, True])
def test_files_that_change_while_they_are_read(is_last: bool, tmp_path: Path) -> None:
    named = read_adapter(str(write_adapter(tmp_path))).named("a")

    def gate(executor: Executor) -> AdapterGate:
        load = executor.call

        def call(call: WorkerCall) -> list[WorkerResult]:
            results = load(call)
            if call.method == "drop_adapter":
                return results
            write_adapter(tmp_path, seed=1)
            return [WorkerResult(is_last)]

        executor.call = call  # type: ignore[method-assign]
        return AdapterGate(AdapterMemory(executor, AdapterChecks(read_adapter), 2), 2)

    engine = CoreHarness(adapters=gate)
    answer = engine.add(add_request("1", PROMPT, 4, adapter=named))
    engine.run()
    assert "has changed since it was named" in answer.error
    assert not engine.executor.adapters


def test_old_requests_end_on_the_old_weights() -> None:
    hub = Hub(digests={"x": "one"})
    engine = hub.engine()
    old = engine.add(add_request("old", PROMPT, 6, adapter=Adapter("sql", "x", "one")))
    engine.step()
    hub.digests["x"] = "two"
    new = engine.add(add_request("new", PROMPT, 4, adapter=Adapter("sql", "x", "two")))
    engine.run()
    assert (len(old.token_ids), len(new.token_ids)) == (6, 4)
    assert engine.executor.adapters == {"one", "two"}


def test_the_least_recently_used_adapter_makes_room() -> None:
    hub = Hub()
    engine = hub.engine(slots=1, most=2)
    held: list[AdaptersHeld] = []
    engine.core.watch_adapters(held.append)
    for number, name in enumerate(("a", "b", "a", "c", "b")):
        add(engine, str(number), name)
        engine.run()
    assert [[each.name for each in message.adapters] for message in held] == [
        ["a"],
        ["a", "b"],
        ["a"],
        ["a", "c"],
        ["c"],
        ["c", "b"],
    ]
    assert hub.reads == ["a", "b", "c", "b"]


def test_an_evicted_adapter_is_put_into_its_slot_again() -> None:
    engine = Hub().engine(slots=2, most=2)
    for adapters in ({"a": 6, "b": 2}, {"c": 2}, {"a": 2}):
        answers = [add(engine, f"{name} {count}", name, count) for name, count in adapters.items()]
        engine.run()
        assert [len(answer.token_ids) for answer in answers] == list(adapters.values())


def test_steps_go_on_while_an_adapter_is_fetched() -> None:
    hub, arrived, may_end = Hub(), threading.Event(), threading.Event()

    def read(source: str) -> AdapterInfo:
        assert may_end.wait(10)
        return hub.read(source)

    def gate(executor: Executor) -> AdapterGate:
        return AdapterGate(AdapterMemory(executor, AdapterChecks(read, arrived.set), 2), 2)

    engine = CoreHarness(adapters=gate)
    slow, base = add(engine, "slow", "a"), add(engine, "base")
    while engine.core.has_work:
        engine.step()
    assert (len(slow.token_ids), len(base.token_ids)) == (0, 4)
    may_end.set()
    assert arrived.wait(10)
    engine.run()
    assert len(slow.token_ids) == 4
    engine.core.close()


def test_an_aborted_request_ends_the_reading_of_its_adapter() -> None:
    hub, calls = Hub(), []

    def gate(executor: Executor) -> AdapterGate:
        def call(call: WorkerCall) -> list[WorkerResult]:
            calls.append(call.method)
            return [WorkerResult(False)]

        executor.call = call  # type: ignore[method-assign]
        return AdapterGate(AdapterMemory(executor, AdapterChecks(hub.read), 2), 2)

    engine = CoreHarness(adapters=gate)
    add(engine, "1", "a")
    for _ in range(3):
        engine.step()
    engine.core.abort("frontend-a", ["1"])
    engine.run()
    assert calls == ["load_adapter"] * 3 + ["drop_adapter"]


def test_another_source_of_the_same_adapter_is_tried() -> None:
    hub = Hub(digests={"copy": "x"})
    engine = hub.engine()
    sources = ("gone", "copy", "gone")
    answers = [
        engine.add(add_request(str(number), PROMPT, 4, adapter=Adapter(source, source, "x")))
        for number, source in enumerate(sources)
    ]
    engine.run()
    assert [len(answer.token_ids) for answer in answers] == [0, 4, 0]
    assert hub.reads == ["gone", "copy"]


def test_adapters_take_no_more_bytes_than_allowed() -> None:
    hub = Hub(sizes={"large": 8, "larger": 9})  # 124 and 136 bytes
    engine = hub.engine(slots=2, most=3, most_bytes=130)
    held: list[AdaptersHeld] = []
    engine.core.watch_adapters(held.append)
    answers = {}
    for name in ("a", "b", "c", "large", "larger", "a"):
        answers[name] = add(engine, name, name)
        engine.run()
    assert [[each.name for each in message.adapters] for message in held] == [
        *(["a"], ["a", "b"], ["a", "b", "c"]),
        *(["b", "c"], ["c"], [], ["large"]),
        *([], ["a"]),
    ]
    assert answers["larger"].refusal is RefusalKind.ADAPTER_UNFIT
    assert "raise its memory limit" in answers["larger"].error
