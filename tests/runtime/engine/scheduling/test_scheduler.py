"""The scheduler through EngineCore, over a fake executor that checks the worker's contract."""

import math
import time
from typing import Any

import msgspec
import pytest

from kvasir.engine.kv.request_blocks import RequestBlocks, longest_sequence
from kvasir.engine.scheduling.scheduler import Scheduler
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.engine.fakes import EOS, CoreHarness, add_request, expected_output, next_token
from runtime.wire import prompt_of


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
def test_a_batch_of_mixed_lengths_gives_what_each_request_gives_alone(budget: int) -> None:
    engine = CoreHarness(num_blocks=400, budget=budget)
    lengths = [1, 3, 4, 5, 17, 40, 90, 2, 33, 64, 7, 1]
    answers = [engine.add(add_request(f"r{i}", prompt(n, i), i + 1)) for i, n in enumerate(lengths)]
    engine.run()
    for i, (n, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer.token_ids == expected_output(prompt(n, i), i + 1)


def test_generating_requests_go_on_while_a_long_prompt_is_computed() -> None:
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
            RequestBlocks(4, 4, prefix_caching=True),
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


# -------------------------------------------------------------------------------------------------- preemption


def test_preempted_requests_give_the_same_output() -> None:
    requests = [add_request(f"r{i}", prompt(8 + i, i), 24) for i in range(6)]
    engine = CoreHarness(num_blocks=16)
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.scheduler.num_preemptions > 0
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


# ------------------------------------------------------------------------------------------------- ends and limits


def test_an_end_of_sequence_token_ends_the_request_and_is_part_of_the_output() -> None:
    engine = CoreHarness(model=lambda tokens: EOS if len(tokens) == 6 else next_token(tokens))
    answer = engine.add(add_request("a", prompt(4), 10, stop_token_ids=(EOS,)))
    engine.run()
    assert (len(answer.token_ids), answer.token_ids[-1]) == (3, EOS)
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, None)


def test_ignore_eos_goes_on_and_the_stop_tokens_still_hold() -> None:
    engine = CoreHarness(model=lambda tokens: {6: EOS, 8: 77}.get(len(tokens), next_token(tokens)))
    answer = engine.add(add_request("a", prompt(4), 10, ignore_eos=True, stop_token_ids=(77,)))
    engine.run()
    assert len(answer.token_ids) == 5
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, 77)


def test_an_end_of_sequence_token_asked_for_by_hand_is_reported_where_eos_is_ignored() -> None:
    engine = CoreHarness(model=lambda tokens: EOS)
    answer = engine.add(add_request("a", prompt(4), 10, ignore_eos=True, stop_token_ids=(EOS,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, EOS)


def test_a_stop_token_at_the_last_position_is_a_stop() -> None:
    engine = CoreHarness(model=lambda tokens: 77)
    answer = engine.add(add_request("a", prompt(4), 1, stop_token_ids=(77,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, 77)


def test_prompt_and_output_together_stay_within_the_context() -> None:
    engine = CoreHarness(max_model_len=20)
    answer = engine.add(add_request("a", prompt(15), 100))
    engine.run()
    assert (len(answer.token_ids), answer.finish_reason) == (5, FinishReason.LENGTH)


def test_the_longest_request_fills_the_pool_to_its_last_slot() -> None:
    engine = CoreHarness(num_blocks=3, block_size=4)
    answer = engine.add(add_request("a", prompt(4), 100))
    engine.run()
    assert longest_sequence(3, 4) == 13
    assert (len(answer.token_ids), answer.finish_reason) == (9, FinishReason.LENGTH)


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    engine = CoreHarness(num_blocks=3, block_size=4)
    answer = engine.add(add_request("a", prompt(13), 1))
    other = engine.add(add_request("b", prompt(12), 1))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert answer.error == (
        "the prompt has 13 tokens and this engine holds 13 of prompt and output together: shorten the prompt"
    )
    assert answer.refusal is RefusalKind.INVALID
    assert other.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("token_ids", "error"),
    [
        ([], "the prompt has no tokens"),
        ([1, 1000], "prompt: token id 1000 is out of range (0 to 999)"),
        ([1, 2**32 - 1], f"prompt: token id {2**32 - 1} is out of range (0 to 999)"),
    ],
)
def test_a_prompt_that_would_break_the_model_is_refused(token_ids: list[int], error: str) -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", token_ids))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert answer.error.startswith(error)
    assert answer.refusal is RefusalKind.INVALID
    assert engine.executor.steps == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"stop_token_ids": (1000,)}, "stop_token_ids: token id 1000 is out of range (0 to 999)"),
        ({"allowed_token_ids": (3, -1)}, "allowed_token_ids: token id -1 is out of range (0 to 999)"),
        ({"logit_bias": ((1000, 1.0),)}, "logit_bias: token id 1000 is out of range (0 to 999)"),
        ({"bad_words": ((3,), (4, 1000))}, "bad_words: token id 1000 is out of range (0 to 999)"),
        ({"bad_words": ((3,), ())}, "bad_words holds a word of 0 tokens: give 1 to 1024"),
        ({"seed": 2**63}, f"seed is {2**63}: give an integer of 64 bits"),
        ({"logprobs": -1}, "logprobs is -1: give 0 to 20"),
        ({"max_tokens": 0}, "max_tokens is 0: give 1 or more"),
        ({"top_p": 1.5}, "top_p is 1.5: give a number above 0 and at most 1"),
        ({"temperature": math.nan}, "temperature is nan: give a number that is 0"),
    ],
)
def test_parameters_that_would_break_the_sampler_are_refused(changes: dict[str, Any], error: str) -> None:
    engine = CoreHarness()
    message = add_request("a", prompt(4))
    params = msgspec.structs.replace(message.params, **changes)
    answer = engine.add(msgspec.structs.replace(message, params=params))
    engine.run()
    assert answer.finish_reason is FinishReason.ERROR
    assert error in answer.error
    assert answer.refusal is RefusalKind.INVALID
    assert engine.executor.steps == []


# ---------------------------------------------------------------------------------------------- log probabilities


def test_log_probabilities_reach_the_request_of_their_row() -> None:
    engine = CoreHarness()
    plain = engine.add(add_request("plain", prompt(5), 3))
    asks = engine.add(add_request("asks", prompt(6, 1), 3, logprobs=0))
    engine.run()
    assert plain.logprobs == []
    assert asks.logprobs == [-token_id for token_id in asks.token_ids]


def test_log_probabilities_of_a_prompt_come_with_its_first_token() -> None:
    engine = CoreHarness(budget=8)
    plain = engine.add(add_request("plain", prompt(5), 3))
    asks = engine.add(add_request("asks", prompt(20, 1), 3, prompt_logprobs=0))
    engine.step()
    assert (len(plain.token_ids), asks.prompt_logprobs) == (1, [])
    engine.run()
    assert plain.prompt_logprobs == []
    assert asks.prompt_logprobs == [[-token_id for token_id in prompt(20, 1)[1:]]]


def test_log_probabilities_of_a_prompt_come_once_despite_preemption() -> None:
    engine = CoreHarness(num_blocks=16)
    answers = [engine.add(add_request(f"r{i}", prompt(8, i), 30, logprobs=0, prompt_logprobs=0)) for i in range(6)]
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    for i, answer in enumerate(answers):
        assert answer.prompt_logprobs == [[-token_id for token_id in prompt(8, i)[1:]]]


# ------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("emitted", [1, 5, 9])
def test_a_resumed_request_continues_where_the_other_engine_stood(emitted: int) -> None:
    whole = expected_output(prompt(11), 10)
    engine = CoreHarness()
    answer = engine.add(add_request("a", prompt(11), 10, output=whole[:emitted], attempt=1))
    engine.run()
    assert answer.token_ids == whole
    assert engine.executor.steps[0].new[0].num_prompt_tokens == 11


@pytest.mark.parametrize(
    ("output", "reason", "stop_token_id"),
    [
        ([5, 6, 7], FinishReason.LENGTH, None),
        ([5, 6, 7, 8], FinishReason.LENGTH, None),
        ([5, EOS], FinishReason.STOP, None),
        ([5, 77], FinishReason.STOP, 77),
    ],
)
def test_a_request_resumed_at_its_end_is_ended_without_a_step(
    output: list[int], reason: FinishReason, stop_token_id: int | None
) -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", prompt(4), 3, output=output, stop_token_ids=(77,)))
    engine.run()
    assert (answer.finish_reason, answer.stop_token_id, answer.token_ids) == (reason, stop_token_id, output)
    assert engine.executor.steps == []


def test_a_request_resumed_at_the_end_of_a_smaller_context_is_ended() -> None:
    engine = CoreHarness(max_model_len=8)
    answer = engine.add(add_request("a", prompt(8), 10, output=[5]))
    engine.run()
    assert (answer.finish_reason, answer.token_ids) == (FinishReason.LENGTH, [5])
