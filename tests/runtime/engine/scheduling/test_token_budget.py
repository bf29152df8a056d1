"""Tokens that wait for a row: reserved by the link's thread, released by the scheduler."""

import pytest

from kvasir.config.settings import SchedulerConfig
from kvasir.engine.scheduling.token_budget import REQUEST_TOKENS, TokenBudget
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import expected_output

LIMIT = SchedulerConfig().max_queued_tokens
PROMPT = [5, 6, 7]
COST = len(PROMPT) + REQUEST_TOKENS


def test_the_default_limit_is_64_mi_tokens() -> None:
    assert LIMIT == 2**26


def test_the_limit_is_reached_exactly() -> None:
    budget = TokenBudget(LIMIT)
    assert budget.reserve(LIMIT - 2 * REQUEST_TOKENS - 1)
    assert not budget.reserve(2)
    assert budget.reserve(1)
    assert budget.held == LIMIT
    assert not budget.reserve(0)
    budget.release(1)
    assert budget.reserve(1)


def test_a_request_above_the_limit_is_taken_alone() -> None:
    budget = TokenBudget(10)
    assert budget.reserve(1000)
    assert not budget.reserve(1)
    budget.release(1000)
    assert budget.held == 0
    assert budget.reserve(1)


def test_requests_without_tokens_count_too() -> None:
    budget = TokenBudget(3 * REQUEST_TOKENS)
    assert [budget.reserve(0) for _ in range(4)] == [True, True, True, False]


def test_a_request_beyond_the_limit_is_refused_as_overloaded() -> None:
    engine = CoreHarness(max_num_seqs=1, max_queued_tokens=2 * COST)
    answers = [engine.add(add_request(name, PROMPT, 4)) for name in "abc"]
    assert engine.budget.held == 2 * COST
    engine.step()
    assert answers[2].finish_reason is FinishReason.ERROR
    assert answers[2].refusal is RefusalKind.OVERLOADED
    assert f"count as {2 * COST} tokens (their own, and {REQUEST_TOKENS} for each request)" in answers[2].error
    assert "--max-queued-tokens" in answers[2].error
    assert engine.budget.held == COST  # "a" has a row
    late = engine.add(add_request("d", PROMPT, 4))
    engine.run()
    for answer in (*answers[:2], late):
        assert answer.token_ids == expected_output(PROMPT, 4)


def test_tokens_that_were_emitted_before_count() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT, 4, output=[8, 9], attempt=1))
    assert engine.budget.held == COST + 2


@pytest.mark.parametrize("end", ["abort", "lost", "fail"])
def test_a_waiting_request_that_ends_is_released(end: str) -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    if end == "abort":
        engine.core.abort("frontend-a", ["a"])
    elif end == "lost":
        engine.core.abort_frontend("frontend-a")
    else:
        engine.core.fail_all("over")
    assert engine.budget.held == 0


def test_a_request_that_is_never_queued_is_released() -> None:
    engine = CoreHarness(num_blocks=3, block_size=4)
    engine.add(add_request("too long", [5] * 20))
    engine.add(add_request("out of the vocabulary", [5, 10**6]))
    engine.add(add_request("complete", PROMPT, 1, output=[8], attempt=1))
    engine.add(add_request("a", PROMPT, attempt=2))
    assert engine.budget.held == COST
    engine.core.add("frontend-b", add_request("a", PROMPT, attempt=3))  # the id of another frontend's request
    engine.core.add("frontend-a", add_request("a", PROMPT, attempt=2))  # came twice
    assert engine.budget.held == COST


def test_a_preempted_request_is_released_once() -> None:
    engine = CoreHarness()
    engine.add(add_request("a", PROMPT))
    engine.step()
    engine.scheduler._preempt(engine.scheduler.requests["a"])
    assert engine.budget.held == 0
    engine.core.abort("frontend-a", ["a"])
    assert engine.budget.held == 0
