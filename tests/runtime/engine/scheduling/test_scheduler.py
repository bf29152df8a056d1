"""The scheduler through EngineCore, over a fake executor that checks the worker's contract."""

import time

import pytest

from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.link.protocol import FinishReason
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import EOS, expected_output
from runtime.engine.kv_configs import kv_manager
from runtime.link_messages import prompt_of


def prompt(length: int, salt: int = 0) -> list[int]:
    return [1 + (salt * 131 + i * 7) % 900 for i in range(length)]


# ------------------------------------------------------------------------------------------------ the token budget


def test_a_prompt_over_the_budget_is_computed_in_chunks() -> None:
    engine = CoreHarness(budget=16)
    answer = engine.add(add_request("a", prompt(50), 3))
    engine.run()
    chunks = [row.num_new_tokens for step in engine.executor.steps for row in step.scheduled]
    assert chunks == [16, 16, 16, 2, 1, 1]
    assert answer.token_ids == expected_output(prompt(50), 3)
    assert answer.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("budget", [8, 16, 64, 1024])
def test_a_mixed_batch_gives_what_each_request_gives_alone(budget: int) -> None:
    engine = CoreHarness(num_blocks=400, budget=budget)
    lengths = [1, 3, 4, 5, 17, 40, 90, 2, 33, 64, 7, 1]
    answers = [engine.add(add_request(f"r{i}", prompt(n, i), i + 1)) for i, n in enumerate(lengths)]
    engine.run()
    for i, (n, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer.token_ids == expected_output(prompt(n, i), i + 1)


def test_a_long_prompt_does_not_stop_generating_requests() -> None:
    engine = CoreHarness(budget=8)
    short = engine.add(add_request("short", prompt(4), 20))
    engine.step()
    engine.add(add_request("long", prompt(60), 1))
    for count in range(2, 8):
        engine.step()
        assert len(short.token_ids) == count


def test_requests_join_and_leave_a_running_batch() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", prompt(4), 3))
    engine.step()
    engine.add(add_request("b", prompt(4, 1), 5))
    engine.step()
    assert [row.request_id for row in engine.executor.steps[-1].scheduled] == ["a", "b"]
    engine.step()
    engine.step()
    assert [row.request_id for row in engine.executor.steps[-1].scheduled] == ["b"]
    engine.run()


def test_no_more_requests_run_than_there_are_rows() -> None:
    engine = CoreHarness(max_num_seqs=2)
    for name in "abc":
        engine.add(add_request(name, prompt(4), 4))
    engine.step()
    assert (len(engine.scheduler.running), len(engine.scheduler.waiting)) == (2, 1)
    engine.run()
    assert all(answer.finish_reason for answer in engine.answers.values())


def test_a_budget_below_the_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a step's budget must hold one token of each running request$"):
        Scheduler(
            kv_manager(4, 4),
            max_num_seqs=8,
            max_num_batched_tokens=4,
            max_model_len=16,
            eos_token_ids=[EOS],
        )


def test_a_context_that_the_pool_cannot_hold_is_refused() -> None:
    CoreHarness(num_blocks=4, max_model_len=17)
    with pytest.raises(ValueError, match=r"^the pool must hold one request of the longest kind$"):
        CoreHarness(num_blocks=4, max_model_len=18)


def test_the_last_token_of_the_budget_admits_a_request() -> None:
    engine = CoreHarness(budget=2, max_num_seqs=2)
    engine.add(add_request("running", prompt(1), 8))
    engine.step()
    engine.add(add_request("new", prompt(3, 1), 1))
    engine.step()
    rows = {row.request_id: row.num_new_tokens for row in engine.executor.steps[-1].scheduled}
    assert rows == {"running": 1, "new": 1}
    engine.run()


def test_the_first_output_reports_the_time_in_the_queue() -> None:
    engine = CoreHarness(max_num_seqs=1)
    engine.add(add_request("first", prompt(4), 2))
    before = time.monotonic()
    answer = engine.add(add_request("second", prompt(4, 1), 3))
    engine.step()
    time.sleep(0.01)
    engine.run()
    waited, *later = answer.queue_seconds
    assert waited is not None
    assert 0.01 <= waited <= time.monotonic() - before
    assert later == [None, None]


def test_outputs_report_the_times_of_prefill_and_decode() -> None:
    engine = CoreHarness(max_num_seqs=1, budget=4)
    before = time.monotonic()
    answer = engine.add(add_request("long", prompt(8), 3))
    engine.step()
    time.sleep(0.01)
    engine.step()  # the second part of the prompt
    time.sleep(0.02)
    engine.run()
    passed = time.monotonic() - before
    prefill, *rest = answer.prefill_seconds
    *earlier, decode = answer.decode_seconds
    assert prefill is not None
    assert decode is not None
    assert prefill >= 0.01
    assert decode >= 0.02
    assert prefill + decode <= passed
    assert rest == earlier == [None, None]


# -------------------------------------------------------------------------------------------------- preemption


def test_preempted_requests_give_the_same_output() -> None:
    requests = [add_request(f"r{i}", prompt(8 + i, i), 24) for i in range(6)]
    engine = CoreHarness(num_blocks=16)
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    assert sum(answer.num_preemptions for answer in engine.answers.values()) == engine.scheduler.num_preemptions
    for request in requests:
        expected = expected_output(prompt_of(request), 24)
        assert engine.answers[request.request_id].token_ids == expected


def test_nobody_is_admitted_in_the_step_that_preempts() -> None:
    engine = CoreHarness(num_blocks=16)
    for i in range(6):
        engine.add(add_request(f"r{i}", prompt(8 + i, i), 24))
    before = 0
    while engine.core.has_work:
        engine.step()
        if engine.scheduler.num_preemptions > before:
            assert engine.executor.steps[-1].new == []
        before = engine.scheduler.num_preemptions
    assert before > 0


def test_the_youngest_is_preempted_and_the_oldest_never() -> None:
    engine = CoreHarness(num_blocks=12)
    for i in range(4):
        engine.add(add_request(f"r{i}", prompt(8, i), 32))
    while engine.core.has_work:
        engine.step()
        ids = [request.request_id for request in (*engine.scheduler.running, *engine.scheduler.waiting)]
        assert ids == sorted(ids), "arrival order is kept over running and waiting"
    admitted = [new.request_id for step in engine.executor.steps for new in step.new]
    assert admitted.count("r0") == 1
    assert admitted.count("r3") > 1
    assert engine.scheduler.num_preemptions == len(admitted) - 4


def test_preemption_does_not_thrash() -> None:
    """A waiting request is not let into the last free blocks, to be thrown out a few steps later."""
    engine = CoreHarness(num_blocks=32, prefix_caching=False)
    for i in range(8):
        engine.add(add_request(f"r{i}", prompt(16, i), 48))
    engine.run()
    assert 0 < engine.scheduler.num_preemptions <= 4
    computed = sum(row.num_new_tokens for step in engine.executor.steps for row in step.scheduled)
    assert computed <= 1.25 * 8 * (16 + 47)


def test_a_request_that_ends_soon_is_admitted_into_few_blocks() -> None:
    engine = CoreHarness(num_blocks=8)
    engine.add(add_request("long", prompt(12), 12))
    engine.step()
    engine.add(add_request("short", prompt(4, 1), 1))
    engine.step()
    assert [new.request_id for new in engine.executor.steps[-1].new] == ["short"]
    engine.run()


@pytest.mark.parametrize(
    ("emitted", "max_tokens", "free", "admitted"),
    [
        (15, 1, 2, True),  # neither request needs another block
        (14, 1, 2, False),  # the running request needs one more
        (14, 1, 3, True),
        (15, 2, 2, False),  # the new request needs one more
        (15, 2, 3, True),
        (14, 2, 3, False),  # both need one more
        (14, 2, 4, True),
    ],
)
def test_a_request_is_admitted_if_both_can_grow_to_their_ends(
    emitted: int, max_tokens: int, free: int, admitted: bool
) -> None:
    """The new request fills two blocks. A block is 4 tokens, and the last token of a request needs no KV."""
    old = expected_output(prompt(8), emitted)
    engine = CoreHarness(num_blocks=6 + free)
    engine.add(add_request("old", prompt(8), 16, output=old[:-1], attempt=1))
    engine.step()
    assert engine.blocks.pool.num_free == free
    engine.add(add_request("new", prompt(8, 1), max_tokens))
    engine.scheduler.schedule()
    assert ("new" in [request.request_id for request in engine.scheduler.running]) == admitted


def test_blocks_are_reserved_for_a_prompt_in_chunks() -> None:
    """Later requests take none of the blocks that the rest of the prompt needs."""
    engine = CoreHarness(num_blocks=20, budget=8, max_num_seqs=4)
    engine.add(add_request("long", prompt(60), 4))
    engine.step()
    engine.add(add_request("next", prompt(30, 1), 4))
    engine.run()
    assert engine.scheduler.num_preemptions == 0
