"""Adapters share slots and memory: every request ends, with its own adapter, and a bad one ends only its own."""

import random
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvasir.engine.adapters.adapter_checks import AdapterChecks
from kvasir.engine.adapters.adapter_gate import MAX_WAIT_SECONDS, AdapterGate
from kvasir.engine.adapters.adapter_memory import AdapterMemory
from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.executor.executor import Executor
from kvasir.hub.adapters.adapter_config import AdapterConfig
from kvasir.hub.adapters.adapter_info import AdapterInfo, read_adapter
from kvasir.hub.adapters.adapter_tensors import AdaptedModule
from kvasir.hub.hub_errors import DownloadFailed, HubError
from kvasir.link.protocol import AdaptersHeld, FinishReason, RefusalKind
from kvasir.request.adapter import Adapter
from kvasir.worker.worker_calls import WorkerCall, WorkerResult
from runtime.engine.core_harness import Answer, CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.hub.adapters.adapter_files import write_adapter

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13]


@dataclass
class Hub:
    """Adapters whose digest is their source, or the one in `digests`."""

    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Outputs of an adapter's module, by source: it takes 28 bytes, and 12 for each of them."""
    now: float = 0.0
    reads: list[str] = field(default_factory=list)

    def read(self, source: str) -> AdapterInfo:
        self.reads.append(source)
        if source == "gone":
            raise HubError("gone does not exist")
        if source == "slow":
            raise DownloadFailed("the hub cannot be reached")
        config = AdapterConfig(4, 8, "", {}, {}, use_rslora=False)
        modules = {"q_proj": AdaptedModule(1, 1.0, 7, self.sizes.get(source, 1))}
        return AdapterInfo(source, Path("/nowhere"), self.digests.get(source, source), config, modules)

    def engine(
        self, slots: int = 2, most: int = 3, most_bytes: int = sys.maxsize, **changes: object
    ) -> CoreHarness:
        def gate(executor: Executor) -> AdapterGate:
            memory = AdapterMemory(executor, AdapterChecks(self.read), most, most_bytes=most_bytes)
            return AdapterGate(memory, slots, clock=lambda: self.now)

        return CoreHarness(adapters=gate, **changes)  # type: ignore[arg-type]


def adapter(name: str) -> Adapter:
    return Adapter(name, name, name)


def add(engine: CoreHarness, request_id: str, name: str = "", max_tokens: int = 4) -> Answer:
    message = add_request(request_id, PROMPT, max_tokens, adapter=adapter(name) if name else None, ignore_eos=True)
    return engine.add(message)


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_many_adapters_all_end(seed: int) -> None:
    choose, hub = random.Random(seed), Hub(sizes={"a": 6, "b": 11})  # 100 and 160 bytes; the others 40
    engine = hub.engine(slots=2, most=3, most_bytes=200, num_blocks=20, max_in_flight=1 + seed % 2)
    answers = {}
    for number in range(60):
        name = choose.choice(["", *"abcdefgh"])
        answers[number] = add(engine, str(number), name, choose.randint(1, 9))
        if choose.random() < 0.7:
            engine.step()
        hub.now += choose.random()
        if choose.random() < 0.1:
            engine.core.abort("frontend-a", [str(number)])
            del answers[number]
    engine.run()
    for answer in answers.values():
        assert answer.token_ids == expected_output(PROMPT, len(answer.token_ids))
        assert answer.finish_reason is FinishReason.LENGTH
    for step in engine.executor.steps:
        assert all(slot < 2 for slot, _ in step.slots)
    assert engine.executor.most_adapters <= 3


def test_requests_overtake_one_that_waits_for_a_slot() -> None:
    engine = Hub().engine(slots=1)
    first = add(engine, "1", "a", max_tokens=6)
    engine.step()
    waiting, base, same = add(engine, "2", "b"), add(engine, "3"), add(engine, "4", "a")
    engine.step()
    assert [len(each.token_ids) for each in (first, waiting, base, same)] == [2, 0, 1, 1]
    engine.run()
    assert len(waiting.token_ids) == 4


def test_a_steady_stream_for_one_adapter_starves_no_other() -> None:
    hub = Hub()
    engine = hub.engine(slots=1, max_num_seqs=4)
    add(engine, "first", "a", max_tokens=8)
    engine.step()
    waiting = add(engine, "other", "b")
    for number in range(30):
        add(engine, str(number), "a", max_tokens=8)
        engine.step()
        hub.now += MAX_WAIT_SECONDS / 3
    assert len(waiting.token_ids) == 4
    engine.run()


def test_a_bad_adapter_ends_only_its_requests() -> None:
    hub = Hub(digests={"new": "other"})
    engine = hub.engine()
    good, base = add(engine, "good", "a"), add(engine, "base")
    bad = {name: [add(engine, f"{name} {each}", name) for each in range(2)] for name in ("gone", "unfit", "new")}
    engine.run()
    for name, said in {"gone": "does not exist", "unfit": "it is of another model", "new": "has changed"}.items():
        for answer in bad[name]:
            assert answer.refusal is RefusalKind.ADAPTER_UNFIT
            assert said in answer.error
            assert repr(name) in answer.error
    assert len(good.token_ids) == len(base.token_ids) == 4
    passing = [add(engine, name, name) for name in ("slow", "too large")]
    engine.run()
    assert {each.finish_reason for each in passing} == {FinishReason.ERROR}
    assert {each.refusal for each in passing} == {RefusalKind.ADAPTER_UNREAD}
    hub.digests.clear()
    mended = add(engine, "mended", "new")
    engine.run()
    assert len(mended.token_ids) == 4


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


def test_requests_of_one_adapter_share_a_prefix_and_no_others_do() -> None:
    engine = Hub().engine()
    cached = {}
    for number, name in enumerate(("a", "b", "", "a", "")):
        cached[number] = add(engine, str(number), name)
        engine.run()
    assert [answer.num_cached_tokens[0] for answer in cached.values()] == [0, 0, 0, 8, 8]


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


def test_an_engine_without_adapters_rejects_their_requests() -> None:
    engine = CoreHarness()
    answer = add(engine, "1", "a")
    engine.run()
    assert answer.refusal is RefusalKind.INVALID
    assert "--enable-lora" in answer.error


class Closed(AdmissionGate):
    """Skips the requests with these ids."""

    def __init__(self, *request_ids: str) -> None:
        self.request_ids = {*request_ids}

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.SKIP if request.request_id in self.request_ids else Verdict.ADMIT


def test_a_request_at_another_gate_holds_no_slot() -> None:
    closed = Closed("compiles", "fetches")
    engine = Hub().engine(slots=1, gates=[closed])
    held, fetched = add(engine, "compiles", "a"), add(engine, "fetches", "b")
    others = [add(engine, name, name) for name in "cab"]
    engine.run_blocked()
    assert [len(each.token_ids) for each in (held, fetched, *others)] == [0, 0, 4, 4, 4]
    closed.request_ids.clear()
    engine.core.wake("compiles")
    engine.core.wake("fetches")
    engine.run()
    assert len(held.token_ids) == len(fetched.token_ids) == 4


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


def test_a_large_adapter_gets_room_from_a_steady_stream() -> None:
    hub = Hub(sizes={"large": 8})
    engine = hub.engine(slots=2, most=3, most_bytes=130)
    add(engine, "first", "a", max_tokens=8)
    engine.step()
    waiting = add(engine, "other", "large")
    for number in range(30):
        add(engine, str(number), "a", max_tokens=8)
        engine.step()
        hub.now += MAX_WAIT_SECONDS / 3
    assert len(waiting.token_ids) == 4
    engine.run()
