"""The busy loop on a thread, over a fake link and the fake executor."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvasir.engine import loop
from kvasir.link.engine_end.engine_link import CacheEventsWanted, DrainSettled, FrontendLost
from kvasir.link.protocol import (
    Abort,
    CacheEvents,
    Call,
    EngineStats,
    FinishReason,
    Logprobs,
    Outputs,
    RequestOutput,
    Result,
)
from kvasir.request.hashing import chain_root, packed_chain, split_chain
from kvasir.request.tokens import token_array
from kvasir_contract.phases import Phase
from runtime.engine.core_harness import FRONTEND, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.gates import ReadyGate
from runtime.engine.looped_engine import PROMPT, WAIT, Engine, held_step

STATS = EngineStats(waiting=0, running=0, kv_blocks_used=0, step=1, preemptions=0)


def test_a_request_from_the_link_is_answered_over_the_link(engine: Engine) -> None:
    engine.tell(add_request("a", PROMPT, 5))
    token_ids, last = engine.answer("a")
    assert token_ids == expected_output(PROMPT, 5)
    assert last.finish_reason is FinishReason.LENGTH


def test_scores_of_many_prompts_are_split_into_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MESSAGE_SCORES", 10)
    scored = Logprobs([0.0] * 2, [1] * 2, [[1, 2]] * 2, [[0.0, 0.0]] * 2)  # six of them
    outputs = [RequestOutput(str(n), 1, 0, [7], prompt_logprobs=None if n % 3 else scored) for n in range(12)]
    sizes = [
        [len(output.prompt_logprobs.token) for output in part.outputs if output.prompt_logprobs is not None]
        for part in loop.parts(Outputs(outputs, STATS))
    ]
    assert sizes == [[2, 2], [2, 2], []]
    assert [o for part in loop.parts(Outputs(outputs, STATS)) for o in part.outputs] == outputs
    unscored = Outputs(outputs[1:3], STATS)
    assert list(loop.parts(unscored)) == [unscored]


def test_without_work_the_loop_sleeps(engine: Engine) -> None:
    assert engine.link.idle.wait(WAIT)
    engine.tell(add_request("a", PROMPT, 3))
    engine.answer("a")
    assert engine.link.idle.wait(WAIT)
    reports, cpu = len(engine.link.loads), time.process_time()
    with pytest.raises(queue.Empty):
        engine.link.sent.get(timeout=0.3)
    assert len(engine.link.loads) == reports
    assert time.process_time() - cpu < 0.1


def test_the_load_is_told_before_a_step_begins(engine: Engine) -> None:
    """A first step that never ends has to show as work without progress."""
    assert engine.link.idle.wait(WAIT)
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, 1))
    assert begun.wait(WAIT)
    stats, busy = engine.link.loads[-1]
    assert (busy, stats.waiting, stats.step) == (True, 1, 0)
    go_on.set()


def test_work_ahead_keeps_nobody_waiting_and_no_engine_alive(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless() -> bool:
        begun.set()
        return True

    monkeypatch.setattr(engine.harness.executor, "work_ahead", endless)
    for request_id in ("a", "b"):
        engine.tell(add_request(request_id, PROMPT, 1))
        assert engine.answer(request_id)[1].finish_reason is FinishReason.LENGTH
        assert begun.wait(WAIT)
        begun.clear()
    engine.loop.drain()
    engine.ended.result(WAIT)


def test_an_abort_that_comes_during_a_step_silences_its_token(engine: Engine) -> None:
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, 1))
    assert begun.wait(WAIT)
    engine.tell(Abort(["a"]))
    engine.tell(add_request("b", PROMPT, 1))
    go_on.set()
    _, outputs = engine.outputs()
    assert [output.request_id for output in outputs.outputs] == ["b"]


def test_the_requests_of_a_lost_frontend_are_aborted(engine: Engine) -> None:
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, 10), "frontend-b")
    assert begun.wait(WAIT)
    engine.inbox.put(FrontendLost("frontend-b"))
    engine.inbox.flush()
    engine.tell(add_request("b", PROMPT, 1))
    go_on.set()
    assert engine.outputs()[0] == FRONTEND
    assert engine.link.idle.wait(WAIT)
    assert engine.link.sent.empty()


def test_a_call_is_answered_also_by_an_engine_without_work(engine: Engine) -> None:
    assert engine.link.idle.wait(WAIT)
    engine.tell(Call(7, "reset_prefix_cache"))
    assert engine.link.sent.get(timeout=WAIT) == (FRONTEND, Result(7))


def test_a_call_during_a_step_is_answered_after_its_update(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update supplies masks, and the workers answer no call before a step that waits for them."""
    core, order = engine.harness.core, list[str]()

    def noted(name: str) -> Callable[[Any], Any]:
        method = getattr(core, name)

        def call(argument: object) -> object:
            order.append(name)
            return method(argument)

        return call

    for name in ("update", "call"):
        monkeypatch.setattr(core, name, noted(name))
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, 1))
    assert begun.wait(WAIT)
    engine.tell(Call(7, "reset_prefix_cache"))
    go_on.set()
    assert isinstance(engine.link.sent.get(timeout=WAIT)[1], Outputs)
    assert engine.link.sent.get(timeout=WAIT) == (FRONTEND, Result(7))
    assert order[:2] == ["update", "call"]


def test_a_frontend_that_asks_learns_what_the_cache_holds(engine: Engine) -> None:
    """Blocks of before and after; an engine without work has reported all of them."""

    def held(prompt: list[int]) -> set[bytes]:
        tokens = token_array(prompt + expected_output(prompt, 2))
        return set(split_chain(packed_chain(chain_root(), tokens, 4)))

    first, second = [*range(20, 40), 5], [*range(20, 40), 5, 6, 7, 8]
    engine.tell(add_request("a", first, 3))
    engine.answer("a")
    engine.inbox.put(CacheEventsWanted(FRONTEND))
    engine.tell(add_request("b", second, 3))
    reported: set[bytes] = set()
    while reported != held(first) | held(second):
        _, message = engine.link.sent.get(timeout=WAIT)
        if isinstance(message, CacheEvents):
            reported.update(split_chain(message.stored))


@pytest.fixture
def gate() -> ReadyGate:
    return ReadyGate()


def test_the_loop_sleeps_while_a_request_waits_for_an_event(pool: ThreadPoolExecutor, gate: ReadyGate) -> None:
    engine = Engine(pool, gates=[gate])
    gate.unready = {"compiling"}
    engine.tell(add_request("compiling", PROMPT, 3))
    engine.tell(add_request("plain", PROMPT, 3))
    assert engine.answer("plain")[0] == expected_output(PROMPT, 3)
    assert engine.link.idle.wait(WAIT)
    reports, cpu = len(engine.link.loads), time.process_time()
    with pytest.raises(queue.Empty):
        engine.link.sent.get(timeout=0.3)
    assert len(engine.link.loads) == reports
    assert time.process_time() - cpu < 0.1
    stats, busy = engine.link.loads[-1]
    assert (stats.waiting, busy) == (1, False)
    gate.unready = set()
    engine.inbox.wake_request("compiling")
    assert engine.answer("compiling")[0] == expected_output(PROMPT, 3)
    engine.loop.drain()
    engine.ended.result(WAIT)


@pytest.mark.parametrize("settled", [False, True])
def test_a_drain_waits_for_a_request_that_waits_for_an_event(
    pool: ThreadPoolExecutor, gate: ReadyGate, settled: bool
) -> None:
    engine = Engine(pool, gates=[gate], drain_settle=0.01)
    gate.unready = {"a"}
    engine.tell(add_request("a", PROMPT, 3))
    engine.loop.drain()
    assert engine.link.draining.wait(WAIT)
    if settled:
        engine.inbox.put(DrainSettled())
        engine.inbox.flush()
    cpu = time.process_time()
    with pytest.raises(TimeoutError):
        engine.ended.result(0.3)
    assert time.process_time() - cpu < 0.1
    gate.unready = set()
    engine.inbox.wake_request("a")
    assert engine.answer("a")[0] == expected_output(PROMPT, 3)
    engine.ended.result(WAIT)


def test_a_blocked_request_fails_at_the_drain_timeout(pool: ThreadPoolExecutor, gate: ReadyGate) -> None:
    engine = Engine(pool, gates=[gate], drain_timeout=0.1, drain_settle=0.01)
    gate.unready = {"a"}
    engine.tell(add_request("a", PROMPT, 3))
    engine.loop.drain()
    assert "did not finish within 0 s" in engine.answer("a")[1].error
    engine.ended.result(WAIT)


def test_a_drain_finishes_running_and_waiting_requests(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool, max_num_seqs=1, drain_settle=3600)
    begun, go_on = held_step(engine)
    engine.tell(add_request("running", PROMPT, 5))
    engine.tell(add_request("waiting", PROMPT, 5))
    assert begun.wait(WAIT)
    engine.loop.drain()
    go_on.set()
    assert engine.link.draining.wait(WAIT)
    assert engine.status.phase is Phase.DRAINING
    engine.tell(add_request("late", PROMPT, 5))  # sent before the frontend read Draining
    engine.inbox.put(DrainSettled())
    engine.inbox.flush()
    for name in ("running", "waiting", "late"):
        assert engine.answer(name)[0] == expected_output(PROMPT, 5)
    engine.ended.result(WAIT)
    assert engine.harness.executor.rows == {}


def test_an_idle_engine_drains_by_itself(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool)
    assert engine.link.idle.wait(WAIT)
    engine.loop.drain()
    engine.ended.result(WAIT)


def test_an_engine_drains_until_its_frontends_have_noticed(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool, drain_settle=3600, drain_timeout=3600)
    assert engine.link.idle.wait(WAIT)
    engine.loop.drain()
    assert engine.link.draining.wait(WAIT)
    engine.tell(add_request("late", PROMPT, 5))  # sent before the frontend noticed
    engine.inbox.put(DrainSettled())
    engine.inbox.flush()
    assert engine.answer("late")[0] == expected_output(PROMPT, 5)
    engine.ended.result(WAIT)


def test_an_unfinished_request_fails_at_the_drain_timeout(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool, drain_timeout=0)
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, 200))
    assert begun.wait(WAIT)
    engine.loop.drain()
    go_on.set()
    token_ids, last = engine.answer("a")
    assert last.finish_reason is FinishReason.ERROR
    assert "did not finish within 0 s" in last.error
    assert last.position == len(token_ids) == 1
    engine.ended.result(WAIT)
    assert engine.harness.executor.rows == {}


@pytest.mark.parametrize(("tokens", "expected"), [(200, ["drain timeout: 1 request ended with an error"]), (1, [])])
def test_a_drain_timeout_is_told_where_a_request_is_left(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, tokens: int, expected: list[str]
) -> None:
    """A request that has just ended leaves a row to free."""
    engine = Engine(pool, drain_timeout=0)
    begun, go_on = held_step(engine)
    engine.tell(add_request("a", PROMPT, tokens))
    assert begun.wait(WAIT)
    engine.loop.drain()
    go_on.set()
    engine.ended.result(WAIT)
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if line.startswith("drain timeout")] == expected


def test_a_step_that_fails_ends_the_loop(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool)

    def failing() -> None:
        raise RuntimeError("device lost")

    engine.harness.executor.before_step = failing
    engine.tell(add_request("a", PROMPT))
    with pytest.raises(RuntimeError, match="device lost"):
        engine.ended.result(WAIT)


def test_a_leak_is_found_when_the_engine_goes_idle(pool: ThreadPoolExecutor) -> None:
    engine = Engine(pool)
    assert engine.link.idle.wait(WAIT)
    engine.harness.blocks.pool.allocate(1)
    engine.tell(add_request("a", PROMPT, 1))
    with pytest.raises(AssertionError, match="1 of 64 KV blocks belong to no request"):
        engine.ended.result(WAIT)
