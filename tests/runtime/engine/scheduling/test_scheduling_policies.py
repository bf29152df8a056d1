"""Long prompts next to others, priorities, and steps that overlap; through EngineCore, over the fake executor."""

import pytest

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.engine.scheduling.token_budget import RequestRefused
from kvasir.link.protocol import FinishReason
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import EOS, expected_output, next_token
from runtime.engine.kv_configs import kv_manager


def prompt(length: int, salt: int = 0) -> list[int]:
    return [1 + (salt * 131 + i * 7) % 900 for i in range(length)]


# ------------------------------------------------------------------------------------------------- long prefills


def test_a_long_prompt_leaves_room_for_others_in_each_step() -> None:
    engine = CoreHarness(budget=32, long_prefill_token_threshold=8)
    engine.add(add_request("long", prompt(60), 1))
    engine.add(add_request("short", prompt(10, 1), 1))
    engine.step()
    rows = {row.request_id: row.num_new_tokens for row in engine.executor.steps[-1].scheduled}
    assert rows == {"long": 8, "short": 8}
    engine.run()


def test_a_long_prompt_alone_takes_the_whole_step() -> None:
    engine = CoreHarness(budget=32, long_prefill_token_threshold=8)
    engine.add(add_request("long", prompt(60), 1))
    engine.run()
    assert [row.num_new_tokens for step in engine.executor.steps for row in step.scheduled] == [32, 28]


# ----------------------------------------------------------------------------------------------------- priorities


def test_the_smallest_priority_is_served_first() -> None:
    engine = CoreHarness(max_num_seqs=1, by_priority=True)
    for name, priority in (("a", 0), ("b", 5), ("c", -3), ("d", 0)):
        engine.add(add_request(name, prompt(4), 2, priority=priority))
    engine.run()
    assert [new.request_id for step in engine.executor.steps for new in step.new] == ["c", "a", "d", "b"]


def test_resumed_requests_precede_fresh_ones_of_their_priority() -> None:
    engine = CoreHarness(max_num_seqs=1, by_priority=True)
    for name, priority, age in (("a", 0, 0.0), ("b", 0, 3.0), ("c", 0, 9.0), ("d", -1, 0.0), ("e", 1, 99.0)):
        engine.add(add_request(name, prompt(4), 2, priority=priority, age=age))
    engine.run()
    assert [new.request_id for step in engine.executor.steps for new in step.new] == ["d", "c", "b", "a", "e"]


def test_a_resumed_request_is_preempted_after_fresh_ones() -> None:
    engine = CoreHarness(num_blocks=14)
    engine.add(add_request("fresh", prompt(8), 32))
    engine.step()
    engine.add(add_request("resumed", prompt(8, 1), 32, age=3.0))
    while engine.core.has_work and engine.scheduler.num_preemptions == 0:
        engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ["fresh"]
    engine.run()


def test_an_urgent_prompt_leaves_a_token_to_each_later_request() -> None:
    engine = CoreHarness(budget=8, by_priority=True)
    slow = engine.add(add_request("slow", prompt(4), 12, priority=1))
    engine.step()
    engine.add(add_request("urgent", prompt(60, 1), 1, priority=0))
    for count in range(2, 10):
        engine.step()
        assert len(slow.token_ids) == count
    assert [row.num_new_tokens for row in engine.executor.steps[-1].scheduled] == [7, 1]
    engine.run()


def test_the_least_urgent_is_preempted_though_it_came_first() -> None:
    engine = CoreHarness(num_blocks=14, by_priority=True)
    slow = engine.add(add_request("slow", prompt(8), 32, priority=1))
    engine.step()
    urgent = engine.add(add_request("urgent", prompt(8, 1), 32, priority=0))
    while engine.core.has_work and engine.scheduler.num_preemptions == 0:
        engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ["slow"]
    engine.run()
    assert slow.token_ids == expected_output(prompt(8), 32)
    assert urgent.token_ids == expected_output(prompt(8, 1), 32)


def test_who_is_preempted_has_no_part_in_the_step() -> None:
    """The least urgent stands last in the step, wherever it stood by its arrival."""
    engine = CoreHarness(num_blocks=14, by_priority=True)
    for i, priority in enumerate((2, 0, 1)):
        engine.add(add_request(f"r{i}", prompt(8, i), 32, priority=priority))
    while engine.core.has_work:
        before = engine.scheduler.num_preemptions
        engine.step()
        if engine.scheduler.num_preemptions > before:
            step = engine.executor.steps[-1]
            assert not {row.request_id for row in step.scheduled} & set(step.finished)
    assert engine.scheduler.num_preemptions > 0


def test_a_priority_is_refused_where_nobody_looks_at_it() -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", prompt(4), priority=1))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert answer.error == (
        "priority is 1, but this engine serves requests by arrival: leave it out, or start the engine with "
        "--scheduling-policy priority"
    )


def test_a_scheduler_serves_by_arrival_without_priorities() -> None:
    blocks = kv_manager(8, 4)
    scheduler = Scheduler(blocks, max_num_seqs=1, max_num_batched_tokens=8, max_model_len=16, eos_token_ids=[EOS])
    with pytest.raises(RequestRefused, match="priority is 1"):
        scheduler.add(EngineRequest("frontend-a", add_request("a", prompt(4), priority=1)))
    assert scheduler.requests == {}


# ----------------------------------------------------------------------------------------------- overlapping steps


def test_a_step_is_scheduled_before_the_one_before_it_is_known() -> None:
    engine = CoreHarness(max_in_flight=2)
    answer = engine.add(add_request("a", prompt(6), 3))
    engine.step()
    assert (len(engine.executor.steps), answer.token_ids) == (1, [])
    engine.step()
    assert (len(engine.executor.steps), len(answer.token_ids)) == (2, 1)
    engine.run()
    assert answer.token_ids == expected_output(prompt(6), 3)


def test_a_request_awaiting_its_last_token_holds_up_no_other() -> None:
    engine = CoreHarness(max_in_flight=2)
    engine.add(add_request("first", prompt(4), 2))
    engine.add(add_request("second", prompt(4, 1), 6))
    for rows in [["first", "second"]] * 2 + [["second"]] * 4:
        before = len(engine.executor.steps)
        engine.step()
        assert [[row.request_id for row in step.scheduled] for step in engine.executor.steps[before:]] == [rows]
    engine.run()


def test_no_token_is_computed_beyond_a_known_end() -> None:
    engine = CoreHarness(max_in_flight=2)
    engine.add(add_request("a", prompt(6), 3))
    engine.run()
    assert sum(row.num_new_tokens for step in engine.executor.steps for row in step.scheduled) == 6 + 2


def test_no_token_is_computed_beyond_the_end_of_the_context() -> None:
    engine = CoreHarness(max_in_flight=2, max_model_len=10)
    answer = engine.add(add_request("a", prompt(6), 9))
    engine.run()
    assert (len(answer.token_ids), answer.finish_reason) == (4, FinishReason.LENGTH)
    assert sum(row.num_new_tokens for step in engine.executor.steps for row in step.scheduled) == 6 + 3


def test_tokens_after_an_unplanned_end_are_dropped() -> None:
    engine = CoreHarness(max_in_flight=2, model=lambda tokens: EOS if len(tokens) == 7 else next_token(tokens))
    answer = engine.add(add_request("a", prompt(6), 9))
    other = engine.add(add_request("b", prompt(3, 1), 9))
    engine.run()
    assert (answer.token_ids[-1], answer.finish_reason) == (EOS, FinishReason.STOP)
    assert len(answer.token_ids) == 2
    assert other.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("max_in_flight", [3, 4, 6])
def test_a_preempted_request_waits_for_its_pending_tokens(max_in_flight: int) -> None:
    engine = CoreHarness(num_blocks=16, max_in_flight=max_in_flight)
    for i in range(6):
        engine.add(add_request(f"r{i}", prompt(8, i), 30))
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    for i in range(6):
        assert engine.answers[f"r{i}"].token_ids == expected_output(prompt(8, i), 30)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_steps_are_submitted_before_the_first_is_awaited(max_in_flight: int) -> None:
    engine = CoreHarness(max_in_flight=max_in_flight)
    answer = engine.add(add_request("a", prompt(6), 9))
    for submitted in range(1, max_in_flight + 3):
        engine.step()
        assert len(engine.executor.steps) == submitted
        assert len(answer.token_ids) == max(0, submitted - max_in_flight + 1)
    engine.run()


def test_without_lookahead_a_request_waits_for_its_pending_token() -> None:
    engine = CoreHarness(max_in_flight=2, lookahead=0, budget=8, long_prefill_token_threshold=4)
    answer = engine.add(add_request("a", prompt(6), 3))
    other = engine.add(add_request("b", prompt(10, 1), 3))
    engine.run()
    rows = [[row.request_id for row in step.scheduled] for step in engine.executor.steps if step.scheduled]
    assert rows == [["a", "b"], ["a", "b"], ["b"], ["a"], ["b"], ["a"], ["b"]]
    assert answer.token_ids == expected_output(prompt(6), 3)
    assert other.token_ids == expected_output(prompt(10, 1), 3)


def test_a_preempted_request_counts_its_prompt_once() -> None:
    engine = CoreHarness(num_blocks=16)
    for i in range(6):
        engine.add(add_request(f"r{i}", prompt(8, i), 30))
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.num_prompt_tokens == 6 * 8
    assert engine.scheduler.num_generated_tokens == 6 * 30


def test_a_long_request_at_the_head_is_not_overtaken() -> None:
    engine = CoreHarness(num_blocks=16)
    engine.add(add_request("first", prompt(40), 8))
    engine.step()
    engine.add(add_request("long", prompt(50), 2))
    for i in range(20):
        engine.add(add_request(f"short{i}", prompt(2, i), 2))
    engine.run()
    admitted = [new.request_id for step in engine.executor.steps for new in step.new]
    assert admitted[:2] == ["first", "long"]
