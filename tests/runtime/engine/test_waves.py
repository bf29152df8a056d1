import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.engine.health.step_trace import StepPhase
from kvasir.engine.waves import Flags, Independent, LockStep
from kvasir.link.engine_end.engine_link import DrainSettled
from kvasir.link.protocol import Abort, FinishReason, StartWave
from runtime.engine.core_harness import add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.looped_engine import PROMPT, WAIT, Engine, held_step
from runtime.engine.wave_engines import SYNC, GroupOfEngines, Meeting, ThreadWaveGroup, engines_in_waves


def complete(group: GroupOfEngines, rank: int, request_id: str, tokens: int) -> None:
    engine = group.engines[rank]
    engine.tell(add_request(request_id, PROMPT, tokens))
    assert engine.answer(request_id)[0] == expected_output(PROMPT, tokens)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_request_at_any_engine_starts_and_stops_all(rank: int) -> None:
    with engines_in_waves(3) as group:
        complete(group, rank, "a", 6)
        group.wait_paused()
        assert group.meeting.log == (["pass"] * SYNC + ["decide"]) * 2
        assert [waves.wave for waves in group.waves] == [1, 1, 1]
        assert [waves.empty_passes for waves in group.waves] == [2 if each == rank else 8 for each in range(3)]


def test_stopped_engines_take_no_turns_until_the_next_request() -> None:
    with engines_in_waves(2) as group:
        for number in range(3):
            complete(group, number % 2, str(number), 1)
            group.wait_paused()
            assert group.passes == SYNC * (number + 1)
        for engine in group.engines:
            assert engine.link.idle.wait(WAIT)
        assert [waves.wave for waves in group.waves] == [3, 3]


def test_the_wave_runs_until_the_last_engine_is_done() -> None:
    with engines_in_waves(2) as group:
        group.engines[0].tell(add_request("long", PROMPT, 40))
        group.engines[1].tell(add_request("short", PROMPT, 2))
        assert group.engines[1].answer("short")[0] == expected_output(PROMPT, 2)
        assert group.engines[0].answer("long")[0] == expected_output(PROMPT, 40)
        group.wait_paused()
        # A prefill with the first token, then a token per pass; both waves may have begun one after the other.
        assert group.passes in (40, 44)


def test_a_request_that_comes_at_the_end_of_a_wave_is_computed() -> None:
    with engines_in_waves(2) as group:
        late = group.engines[1]
        decide = group.waves[0]._group.any

        def decide_and_add(flags: Sequence[bool]) -> list[bool]:
            late.tell(add_request("late", PROMPT, 3))  # engine 1 waits for this decision, and has not taken it
            group.waves[0]._group.any = decide  # type: ignore[method-assign]
            return decide(flags)

        group.waves[0]._group.any = decide_and_add  # type: ignore[method-assign]
        complete(group, 0, "a", 2)
        assert late.answer("late")[0] == expected_output(PROMPT, 3)
        group.wait_paused()


def test_a_frontend_wakes_engines_that_sleep_and_no_others() -> None:
    with engines_in_waves(3) as group:
        for _ in range(2):
            for engine in group.engines:
                engine.tell(StartWave())
        complete(group, 0, "a", 2 * SYNC)
        group.wait_paused()
        assert group.meeting.log == (["pass"] * SYNC + ["decide"]) * (group.passes // SYNC)
        assert len({waves.wave for waves in group.waves}) == 1


def test_a_frontend_that_wakes_one_engine_wakes_all() -> None:
    with engines_in_waves(3) as group:
        group.engines[1].tell(StartWave())
        for waves in group.waves:  # an engine that the call has not reached yet is paused too
            waves.began.get(timeout=WAIT)
        group.wait_paused()
        assert [waves.wave for waves in group.waves] == [1, 1, 1]


def test_an_aborted_request_stops_the_wave() -> None:
    with engines_in_waves(2) as group:
        begun, go_on = held_step(group.engines[0])
        group.engines[0].tell(add_request("a", PROMPT, 90))
        assert begun.wait(WAIT)
        group.engines[0].tell(Abort(["a"]))
        group.engines[0].harness.executor.before_step = lambda: None
        go_on.set()
        group.engines[0].inbox.wake()
        complete(group, 1, "b", 1)
        group.wait_paused()
        assert group.passes <= 2 * SYNC


def test_a_refused_request_starts_no_wave() -> None:
    with engines_in_waves(2) as group:
        group.engines[0].tell(add_request("empty", [], 4))
        assert group.engines[0].answer("empty")[1].finish_reason is FinishReason.ERROR
        assert group.meeting.log == []


def test_an_engine_that_drains_runs_with_the_others_to_the_end() -> None:
    with engines_in_waves(2, drain_settle=3600) as group:
        begun, go_on = held_step(group.engines[0])
        group.engines[0].tell(add_request("a", PROMPT, 30))
        assert begun.wait(WAIT)
        group.engines[1].loop.drain()
        settle(group.engines[1])
        group.engines[0].harness.executor.before_step = lambda: None
        go_on.set()
        assert group.engines[0].answer("a")[0] == expected_output(PROMPT, 30)
        assert group.engines[0].link.draining.wait(WAIT)
        assert not group.engines[1].ended.done()
        settle(group.engines[0])
        for engine in group.engines:
            engine.ended.result(WAIT)


def settle(engine: Engine) -> None:
    """Report that all frontends have read that the engine drains."""
    engine.inbox.put(DrainSettled())
    engine.inbox.flush()


def test_an_idle_engine_that_drains_drains_all() -> None:
    with engines_in_waves(3) as group:
        group.engines[1].loop.drain()
        for engine in group.engines:
            engine.ended.result(WAIT)
            assert engine.link.draining.is_set()


def test_an_engine_may_drain_after_the_group_has_ended() -> None:
    with engines_in_waves(2) as group:
        group.engines[0].loop.drain()
        group.engines[0].ended.result(WAIT)
        group.engines[1].loop.drain()
        group.engines[1].ended.result(WAIT)


def test_a_late_request_of_an_engine_that_drains_is_answered() -> None:
    """Its frontend sent it before it read that the engine drains; the other engine has nothing to wait for."""
    with engines_in_waves(2, drain_settle=3600) as group:
        for engine in group.engines:
            engine.loop.drain()
        for engine in group.engines:
            assert engine.link.draining.wait(WAIT)
        settle(group.engines[1])
        complete(group, 0, "late", 3)
        assert not any(engine.ended.done() for engine in group.engines)
        settle(group.engines[0])
        for engine in group.engines:
            engine.ended.result(WAIT)


def test_the_first_drain_timeout_ends_the_requests_of_all() -> None:
    with engines_in_waves(2, drain_timeouts=[0, 3600]) as group:
        begun, go_on = held_step(group.engines[1])
        group.engines[1].tell(add_request("a", PROMPT, 200))
        assert begun.wait(WAIT)
        group.engines[0].loop.drain()
        group.engines[1].harness.executor.before_step = lambda: None
        go_on.set()
        token_ids, last = group.engines[1].answer("a")
        assert last.finish_reason is FinishReason.ERROR
        assert len(token_ids) <= 2 * SYNC
        for engine in group.engines:
            engine.ended.result(WAIT)


@dataclass(frozen=True)
class LastRequests:
    before: list[int]
    late: list[int]
    """Sent after the engine began to drain, before its frontends have read that."""
    asked: bool
    """This engine is asked to drain."""


counts = st.lists(st.integers(1, 3 * SYNC), max_size=2)
last_requests = st.builds(LastRequests, counts, counts, st.booleans())


@given(st.lists(last_requests, min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_a_drain_ends_all_engines_and_loses_no_request(ranks: list[LastRequests], data: st.DataObject) -> None:
    drained = data.draw(st.permutations([rank for rank, each in enumerate(ranks) if each.asked] or [0]))
    settling = data.draw(st.permutations(range(len(ranks))))
    with engines_in_waves(len(ranks), drain_settle=3600) as group:
        live: list[tuple[int, str, int]] = []

        def send(rank: int, name: str, tokens: int) -> None:
            live.append((rank, name, tokens))
            group.engines[rank].tell(add_request(name, PROMPT, tokens))

        for rank, requests in enumerate(ranks):
            for number, tokens in enumerate(requests.before):
                send(rank, f"before-{number}", tokens)
        for rank in drained:
            group.engines[rank].loop.drain()
        for rank in settling:
            assert group.engines[rank].link.draining.wait(WAIT)
            for number, tokens in enumerate(ranks[rank].late):
                send(rank, f"late-{number}", tokens)
            settle(group.engines[rank])
        check_answers(group, live)
        for engine in group.engines:
            engine.ended.result(WAIT)


def test_the_trace_shows_a_wait_for_another_engine() -> None:
    with engines_in_waves(2) as group:
        begun, go_on = held_step(group.engines[0])
        group.engines[0].tell(add_request("a", PROMPT, 2))
        assert begun.wait(WAIT)
        trace, end = group.engines[1].harness.core.trace, time.monotonic() + WAIT
        while (moment := trace.now) is None or moment.phase is not StepPhase.WAVE:
            assert time.monotonic() < end
            time.sleep(0.001)
        group.engines[0].harness.executor.before_step = lambda: None
        go_on.set()
        assert group.engines[0].answer("a")[0] == expected_output(PROMPT, 2)


def test_the_loss_of_an_engine_ends_an_engine_that_sleeps() -> None:
    with engines_in_waves(2) as group:
        group.meeting.leave()
        for engine in group.engines:
            with pytest.raises(RuntimeError, match="is gone"):
                engine.ended.result(WAIT)


def test_the_loss_of_an_engine_ends_an_engine_that_computes() -> None:
    with engines_in_waves(2) as group:
        begun, go_on = held_step(group.engines[0])
        group.engines[0].tell(add_request("a", PROMPT, 30))
        assert begun.wait(WAIT)
        group.meeting.leave()
        go_on.set()
        with pytest.raises(RuntimeError, match="is gone"):
            group.engines[0].ended.result(WAIT)


@dataclass(frozen=True)
class Arrival:
    rank: int
    tokens: int
    abort: bool
    settle: bool
    """Wait for the end of the wave before the next arrival."""


arrivals = st.builds(
    Arrival, st.integers(0, 2), st.integers(1, 3 * SYNC), st.booleans(), st.sampled_from([True, False, False])
)


@given(st.integers(1, 3), st.lists(arrivals, max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_arrivals_are_answered_and_all_engines_pass_together(size: int, arrivals: list[Arrival]) -> None:
    with engines_in_waves(size) as group:
        live: list[tuple[int, str, int]] = []
        for number, arrival in enumerate(arrivals):
            rank, name = arrival.rank % size, str(number)
            group.engines[rank].tell(add_request(name, PROMPT, arrival.tokens))
            if arrival.abort:
                group.engines[rank].tell(Abort([name]))
            else:
                live.append((rank, name, arrival.tokens))
            if arrival.settle:
                check_answers(group, live)
                group.wait_paused()
        check_answers(group, live)
        group.wait_paused()
        assert group.passes % SYNC == 0
        assert group.meeting.log == (["pass"] * SYNC + ["decide"]) * (group.passes // SYNC)
        assert len({waves.wave for waves in group.waves}) == 1
        group.drain()


def check_answers(group: GroupOfEngines, live: list[tuple[int, str, int]]) -> None:
    for rank, engine in enumerate(group.engines):
        expected = {name: expected_output(PROMPT, tokens) for of, name, tokens in live if of == rank}
        found: dict[str, list[int]] = {name: [] for name in expected}
        unfinished = set(expected)
        while unfinished:
            for output in engine.outputs()[1].outputs:
                if output.request_id in found:  # others were aborted on their way
                    found[output.request_id] += output.token_ids
                    if output.finish_reason is not None:
                        unfinished.remove(output.request_id)
        assert found == expected
    live.clear()


# ------------------------------------------------------------------------------------------------- the policy


class Alone(ThreadWaveGroup):
    """A group of one engine that records its calls and its passes."""

    def __init__(self) -> None:
        super().__init__(0, Meeting(1))
        self.called: list[int] = []

    def call_next(self, wave: int) -> None:
        self.called.append(wave)


def policy(group: ThreadWaveGroup) -> LockStep:
    failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    return LockStep(group, group.forward_pass, lambda wave: None, failed.put, SYNC)


def test_a_wave_is_begun_and_called_once() -> None:
    group = Alone()
    waves = policy(group)
    for _ in range(3):
        waves.begin(0)
        waves.before_step(has_requests=True)
    assert waves.running
    assert group.called == [0]


def test_a_step_without_a_request_begins_no_wave() -> None:
    waves = policy(Alone())
    waves.before_step(has_requests=False)
    waves.after_step(Flags(work=True), passed=False)
    assert not waves.running


def test_a_call_for_a_wave_that_is_over_starts_nothing() -> None:
    group = Alone()
    waves = policy(group)
    waves.begin(0)
    for _ in range(SYNC):
        waves.after_step(Flags(), passed=False)
    assert not waves.running
    waves.begin(0)
    assert not waves.running
    waves.begin(1)
    assert waves.running
    assert group.called == [0, 1]


def test_waking_begins_the_next_wave_once() -> None:
    group = Alone()
    waves = policy(group)
    for _ in range(2):
        waves.wake()
    assert group.called == [0]
    for _ in range(SYNC):
        waves.after_step(Flags(), passed=False)
    waves.wake()
    assert group.called == [0, 1]


def test_a_call_for_a_later_wave_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="wave 1 was called and wave 0 comes next"):
        policy(Alone()).begin(1)


def test_work_keeps_a_wave_running_and_requests_that_wait_do_not() -> None:
    waves = policy(Alone())
    waves.begin(0)
    for _ in range(3 * SYNC):
        waves.after_step(Flags(work=True), passed=True)
    assert waves.running
    for _ in range(SYNC):
        waves.after_step(Flags(), passed=False)
    assert not waves.running


def test_an_engine_that_leaves_fails_the_group_unless_it_drains() -> None:
    for draining in (False, True):
        group = Alone()
        failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        waves = LockStep(group, group.forward_pass, lambda wave: None, failed.put)
        if draining:
            waves.drain()
        group.meeting.leave()
        if not draining:
            assert "is gone" in str(failed.get(timeout=WAIT))
        waves.listener.join(WAIT)
        assert failed.empty()


def test_an_independent_engine_never_runs_without_work() -> None:
    waves = Independent()
    waves.begin(0)
    waves.wake()
    waves.drain()
    waves.before_step(has_requests=True)
    waves.after_step(Flags(work=True), passed=True)
    assert not waves.running
