"""Adapters share slots: every request ends, with its own adapter, and a bad one ends only its own."""

import random

import pytest

from kvasir.engine.adapters.adapter_gate import MAX_WAIT_SECONDS
from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.engine.adapters.adapter_hub import PROMPT, Hub, add
from runtime.engine.core_harness import CoreHarness
from runtime.engine.fake_executor import expected_output


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


def check_answer_next_to_a_steady_stream(hub: Hub, engine: CoreHarness, name: str) -> None:
    """Check that a request for the adapter is answered although requests for another one never end."""
    add(engine, "first", "a", max_tokens=8)
    engine.step()
    waiting = add(engine, "other", name)
    for number in range(30):
        add(engine, str(number), "a", max_tokens=8)
        engine.step()
        hub.now += MAX_WAIT_SECONDS / 3
    assert len(waiting.token_ids) == 4
    engine.run()


def test_a_steady_stream_for_one_adapter_starves_no_other() -> None:
    hub = Hub()
    engine = hub.engine(slots=1, max_num_seqs=4)
    check_answer_next_to_a_steady_stream(hub, engine, "b")


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


def test_requests_of_one_adapter_share_a_prefix_and_no_others_do() -> None:
    engine = Hub().engine()
    cached = {}
    for number, name in enumerate(("a", "b", "", "a", "")):
        cached[number] = add(engine, str(number), name)
        engine.run()
    assert [answer.num_cached_tokens[0] for answer in cached.values()] == [0, 0, 0, 8, 8]


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


def test_a_large_adapter_gets_room_from_a_steady_stream() -> None:
    hub = Hub(sizes={"large": 8})
    engine = hub.engine(slots=2, most=3, most_bytes=130)
    check_answer_next_to_a_steady_stream(hub, engine, "large")
