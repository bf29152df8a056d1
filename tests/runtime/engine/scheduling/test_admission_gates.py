"""Gates that features add: requests that wait, or are skipped and woken; resources taken and released."""

from collections.abc import Callable

import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.gates import ReadyGate, SlotGate, WaitGate

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def gate() -> ReadyGate:
    return ReadyGate()


@pytest.fixture
def core(gate: ReadyGate) -> CoreHarness:
    return CoreHarness(gates=[gate], max_num_seqs=2)


def waiting(core: CoreHarness) -> list[str]:
    return [request.request_id for request in core.scheduler.waiting]


def become_ready(core: CoreHarness, gate: ReadyGate, name: str) -> None:
    gate.unready.remove(name)
    core.core.wake(name)


def test_a_skipped_request_lets_later_ones_pass(core: CoreHarness, gate: ReadyGate) -> None:
    gate.unready = {"first"}
    first = core.add(add_request("first", PROMPT))
    second = core.add(add_request("second", PROMPT))
    while core.core.has_work:
        core.step()
    assert second.token_ids == expected_output(PROMPT, 4)
    assert list(core.scheduler.blocked) == ["first"]
    become_ready(core, gate, "first")
    core.run()
    assert first.token_ids == expected_output(PROMPT, 4)


def test_a_blocked_request_is_no_work_and_counts_as_waiting(core: CoreHarness, gate: ReadyGate) -> None:
    gate.unready = {"a"}
    core.add(add_request("a", PROMPT))
    core.step()
    assert not core.core.has_work
    assert core.core.has_requests
    core.core.check_idle()
    assert (core.core.stats().waiting, core.core.stats().running) == (1, 0)
    assert core.budget.held > 0
    assert core.executor.steps == []


def test_a_woken_request_returns_to_its_place_in_the_order(core: CoreHarness, gate: ReadyGate) -> None:
    gate.unready = {"a", "c"}
    for name in "acbdef":
        core.add(add_request(name, PROMPT, 20))
    core.step()
    assert waiting(core) == ["e", "f"]
    become_ready(core, gate, "c")
    become_ready(core, gate, "a")
    assert waiting(core) == ["a", "c", "e", "f"]
    core.run()


def test_a_request_that_is_woken_too_early_is_skipped_again(core: CoreHarness, gate: ReadyGate) -> None:
    gate.unready = {"a"}
    core.add(add_request("a", PROMPT))
    core.step()
    for _ in range(3):
        assert not core.core.has_work
        core.core.wake("a")
        assert core.core.has_work
        core.step()
    become_ready(core, gate, "a")
    core.run()


def test_waking_an_unknown_request_changes_nothing(core: CoreHarness) -> None:
    core.core.wake("ended long ago")
    assert not core.core.has_work
    core.core.check_idle()


def test_no_gate_of_a_feature_is_asked_while_all_rows_are_taken(core: CoreHarness, gate: ReadyGate) -> None:
    for name in "ab":
        core.add(add_request(name, PROMPT, 9))
    core.step()
    gate.unready = {"c"}
    core.add(add_request("c", PROMPT))
    core.step()
    assert waiting(core) == ["c"]
    gate.unready = set()
    core.run()


def test_a_skipped_request_with_many_blocks_holds_up_no_other(gate: ReadyGate) -> None:
    core = CoreHarness(gates=[gate], num_blocks=12)
    core.add(add_request("running", PROMPT, 9))
    core.step()
    gate.unready = {"large"}
    core.add(add_request("large", [7] * 40, 2))
    core.add(add_request("small", PROMPT, 2))
    core.step()
    assert [request.request_id for request in core.scheduler.running] == ["running", "small"]
    become_ready(core, gate, "large")
    core.run()


def test_no_request_overtakes_one_that_a_gate_makes_wait() -> None:
    gate = WaitGate()
    core = CoreHarness(gates=[gate])
    for name in "ab":
        core.add(add_request(name, PROMPT))
    core.step()
    assert waiting(core) == ["a", "b"]
    assert not core.core.has_work, "the loop would spin"
    gate.is_open = True
    core.core.wake("a")
    core.run()
    assert [new.request_id for step in core.executor.steps for new in step.new] == ["a", "b"]


@pytest.mark.parametrize("event", ["arrival", "abort"])
def test_every_event_has_the_gates_asked_again(event: str) -> None:
    gate = WaitGate()
    core = CoreHarness(gates=[gate])
    for name in "ab":
        core.add(add_request(name, PROMPT))
    core.step()
    assert not core.core.has_work
    gate.is_open = True
    if event == "arrival":
        core.add(add_request("c", PROMPT))
    else:
        core.core.abort(FRONTEND, ["a"])
    core.run()
    assert core.answers["b"].token_ids == expected_output(PROMPT, 4)


# -------------------------------------------------------------------------------------- ends of blocked requests


def aborted(core: CoreHarness) -> None:
    core.core.abort(FRONTEND, ["a"])


def of_a_lost_frontend(core: CoreHarness) -> None:
    assert core.core.abort_frontend(FRONTEND) == 1


def replaced_and_aborted(core: CoreHarness) -> None:
    core.add(add_request("a", PROMPT, attempt=1))
    core.core.abort(FRONTEND, ["a"])


@pytest.mark.parametrize("end", [aborted, of_a_lost_frontend, replaced_and_aborted], ids=lambda f: f.__name__)
def test_a_blocked_request_ends_and_leaves_nothing(
    core: CoreHarness, gate: ReadyGate, end: Callable[[CoreHarness], None]
) -> None:
    gate.unready = {"a"}
    core.add(add_request("a", PROMPT))
    core.step()
    end(core)
    core.run()
    assert core.scheduler.blocked == {}
    core.core.wake("a")
    core.run()
    assert core.answers["a"].token_ids == []


def test_a_blocked_request_fails_with_all_others(core: CoreHarness, gate: ReadyGate) -> None:
    gate.unready = {"a"}
    answer = core.add(add_request("a", PROMPT))
    core.step()
    assert core.core.fail_all("shut down") == 1
    core.run()
    assert (answer.finish_reason, answer.error) == (FinishReason.ERROR, "shut down")
    assert answer.refusal is RefusalKind.UNAVAILABLE


# ------------------------------------------------------------------------------------------------ took and left


def test_a_gate_releases_at_the_end_and_at_an_abort(core: CoreHarness, gate: ReadyGate) -> None:
    for name, count in (("a", 1), ("b", 9)):
        core.add(add_request(name, PROMPT, count))
    core.step()
    assert gate.holders == {"b"}
    core.core.abort(FRONTEND, ["b"])
    assert gate.holders == set()
    core.run()


def test_a_gate_releases_at_a_preemption_and_takes_again(gate: ReadyGate) -> None:
    core = CoreHarness(gates=[gate], num_blocks=16)
    for i in range(6):
        core.add(add_request(f"r{i}", [10 + i] * 8, 30))
    while core.core.has_work:
        core.step()
        assert gate.holders == {request.request_id for request in core.scheduler.running}
    assert core.scheduler.num_preemptions > 0
    core.core.check_idle()


def test_a_preempted_request_may_be_skipped_too(gate: ReadyGate) -> None:
    core = CoreHarness(gates=[gate], num_blocks=14)
    core.add(add_request("first", [5] * 12, 30))
    core.add(add_request("second", [6] * 12, 40))
    while core.scheduler.num_preemptions == 0:
        core.step()
    gate.unready = {"second"}
    while core.core.has_work:
        core.step()
    assert list(core.scheduler.blocked) == ["second"]
    become_ready(core, gate, "second")
    core.run()
    assert core.answers["second"].token_ids == expected_output([6] * 12, 40)


def test_a_gate_may_wake_requests_when_one_leaves() -> None:
    gate = SlotGate(1, key_of=lambda request_id: request_id[0])
    core = CoreHarness(gates=[gate])
    gate.wake = core.core.wake
    for name in ("a1", "b1", "a2", "b2", "c1"):
        core.add(add_request(name, PROMPT, 3))
    core.run()
    admitted = [[new.request_id for new in step.new] for step in core.executor.steps if step.new]
    assert admitted == [["a1", "a2"], ["b1", "b2"], ["c1"]]
    for answer in core.answers.values():
        assert answer.token_ids == expected_output(PROMPT, 3)


class LeakyGate(ReadyGate):
    def left(self, request: EngineRequest) -> None:
        pass


def test_a_gate_that_keeps_a_resource_is_found_when_idle() -> None:
    core = CoreHarness(gates=[LeakyGate()])
    core.add(add_request("a", PROMPT, 1))
    with pytest.raises(AssertionError, match="1 requests hold"):
        core.run()
