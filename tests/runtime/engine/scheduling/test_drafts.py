"""Several tokens per row and step: drafts of a drafter, which the worker accepts or rejects."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.link.protocol import FinishReason
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import EOS, NAN, expected_output, next_token
from runtime.engine.fake_guides import FakeGrammars, constraint, guided_output
from runtime.engine.gates import TokenRation

PROMPT = [5, 6, 7, 8, 9, 10]


def right(token_ids: Sequence[int], count: int = 3) -> list[int]:
    return expected_output(token_ids, count)


def right_and_wrong(token_ids: Sequence[int]) -> list[int]:
    """One right guess and two wrong ones."""
    return [*right(token_ids, 1), 999, 999]


def drafts_of(engine: CoreHarness) -> list[int]:
    """The number of drafts of the only row in each step."""
    return [len(step.scheduled[0].draft_token_ids) for step in engine.executor.steps if step.scheduled]


def drafting_engine(max_step_rows: int = 1000, **options: Any) -> CoreHarness:
    return CoreHarness(max_step_rows=max_step_rows, **options)


def engine_with(drafter: str, **options: int) -> CoreHarness:
    engine = drafting_engine(**options)
    engine.drafter.guess = {"right": right, "right_and_wrong": right_and_wrong}[drafter]
    return engine


def test_accepted_drafts_save_steps() -> None:
    engine = engine_with("right")
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 9)
    assert drafts_of(engine) == [0, 3, 3]
    assert engine.scheduler.num_generated_tokens == 9


def test_rejected_drafts_are_computed_again() -> None:
    engine = engine_with("right_and_wrong")
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 9)
    rows = [step.scheduled[0] for step in engine.executor.steps if step.scheduled]
    assert [(row.num_computed_tokens, row.num_new_tokens) for row in rows] == [
        (0, 6),
        (6, 4),
        (8, 4),
        (10, 4),
        (12, 2),  # two tokens are left
    ]


def test_only_accepted_tokens_are_put_into_the_prefix_cache() -> None:
    engine = engine_with("right_and_wrong")
    engine.add(add_request("a", PROMPT, 9))
    engine.run()
    engine.drafter.guess = None
    whole = [*PROMPT, *expected_output(PROMPT, 9)]
    again = engine.add(add_request("b", whole, 2))
    engine.run()
    assert again.num_cached_tokens[0] == 12
    assert again.token_ids == expected_output(whole, 2)


def test_tokens_after_an_end_are_dropped() -> None:
    engine = engine_with("right")
    stop = expected_output(PROMPT, 3)[2]
    answer = engine.add(add_request("a", PROMPT, 9, stop_token_ids=(stop,), logprobs=0))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 3)
    assert (answer.finish_reason, answer.stop_token_id) == (FinishReason.STOP, stop)
    assert answer.logprobs == [-float(token_id) for token_id in answer.token_ids]


def test_a_draft_may_be_the_end_of_the_sequence() -> None:
    def model(token_ids: Sequence[int]) -> int:
        return EOS if len(token_ids) == len(PROMPT) + 2 else next_token(token_ids)

    engine = drafting_engine(model=model)
    engine.drafter.guess = lambda token_ids: expected_output(token_ids, 3, model)
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert answer.token_ids == [*expected_output(PROMPT, 2), EOS]
    assert answer.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("max_tokens", "drafts"), [(2, [0, 0]), (3, [0, 1]), (5, [0, 3]), (6, [0, 3, 0])])
def test_no_draft_goes_beyond_max_tokens(max_tokens: int, drafts: list[int]) -> None:
    engine = engine_with("right")
    answer = engine.add(add_request("a", PROMPT, max_tokens))
    engine.run()
    assert drafts_of(engine) == drafts
    assert len(answer.token_ids) == max_tokens


def test_no_draft_goes_beyond_the_context() -> None:
    engine = engine_with("right", max_model_len=9)
    answer = engine.add(add_request("a", PROMPT, 20))
    engine.run()
    assert drafts_of(engine) == [0, 1]
    assert (len(answer.token_ids), answer.finish_reason) == (3, FinishReason.LENGTH)


def test_drafts_leave_budget_for_every_later_request() -> None:
    engine = engine_with("right", budget=7, max_num_seqs=4)
    for name in "abcd":
        engine.add(add_request(name, PROMPT[:1], 12))
    engine.step()
    engine.step()
    drafts = [len(row.draft_token_ids) for row in engine.executor.steps[-1].scheduled]
    assert drafts == [3, 0, 0, 0]
    engine.run()


def test_drafts_preempt_no_request() -> None:
    """The next token of each request fits into its two blocks; drafts would need a third one."""
    engine = engine_with("right")
    for name in "ab":
        engine.add(add_request(name, PROMPT, 9))
    engine.step()
    pool = engine.blocks.pool
    rest = pool.allocate(pool.num_free)
    engine.step()
    assert [row.draft_token_ids for row in engine.executor.steps[-1].scheduled] == [(), ()]
    assert engine.scheduler.num_preemptions == 0
    pool.free(rest)
    engine.run()


def test_drafts_take_no_block_that_a_later_request_needs() -> None:
    """The last request fills its blocks and needs the only free one for its next token."""
    engine = engine_with("right")
    engine.add(add_request("a", PROMPT, 9))
    engine.add(add_request("b", [*PROMPT, 11, 12], 9))
    engine.step()
    pool = engine.blocks.pool
    rest = pool.allocate(pool.num_free - 1)
    engine.step()
    assert engine.scheduler.num_preemptions == 0
    assert [row.request_id for row in engine.executor.steps[-1].scheduled] == ["a", "b"]
    pool.free(rest)
    engine.run()


@pytest.mark.parametrize("windows", [(3,), (None, 5), (None, 1, 9)])
@pytest.mark.parametrize("drafter", ["right", "right_and_wrong"])
def test_windows_keep_blocks_read_after_rejected_drafts(windows: tuple[int | None, ...], drafter: str) -> None:
    engine = drafting_engine(windows=windows, block_size=2, num_blocks=80)
    engine.drafter.guess = {"right": right, "right_and_wrong": right_and_wrong}[drafter]
    first = engine.add(add_request("a", PROMPT, 30))
    engine.run()
    whole = [*PROMPT, *expected_output(PROMPT, 30)]
    assert first.token_ids == whole[len(PROMPT) :]
    again = engine.add(add_request("b", whole, 9))
    engine.run()
    assert again.num_cached_tokens[0]
    assert again.token_ids == expected_output(whole, 9)


def test_a_ration_may_shorten_drafts() -> None:
    ration = TokenRation()
    engine = drafting_engine(rations=[ration])
    engine.drafter.guess = right
    ration.limits = {"a": 2}
    answer = engine.add(add_request("a", PROMPT[:2], 6))
    engine.run()
    assert drafts_of(engine) == [0, 1, 1, 0]
    assert answer.token_ids == expected_output(PROMPT[:2], 6)


def test_a_request_with_drafts_in_flight_waits_for_their_update() -> None:
    engine = drafting_engine(max_in_flight=3, lookahead=0)
    engine.drafter.guess = right_and_wrong
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 9)
    assert drafts_of(engine) == [0, 3, 3, 3, 1]


def test_drafts_in_flight_end_the_lookahead() -> None:
    """The place of the next token is not known."""
    ration = TokenRation()
    engine = drafting_engine(max_in_flight=4, rations=[ration])
    engine.drafter.guess = lambda token_ids: [999]
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.step()
    ration.limits = {"a": 0}  # until its token is known and the worker has guessed the next one
    engine.step()
    ration.limits = {}
    engine.step()
    assert drafts_of(engine) == [0, 1]
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 9)


@pytest.mark.parametrize(
    ("max_step_rows", "drafts"), [(4, [0, 0, 0, 0]), (5, [1, 0, 0, 0]), (10, [2, 2, 1, 1]), (99, [3, 3, 3, 3])]
)
def test_drafts_share_the_rows_of_a_step(max_step_rows: int, drafts: list[int]) -> None:
    engine = engine_with("right", max_step_rows=max_step_rows)
    for name in "abcd":
        engine.add(add_request(name, PROMPT, 12))
    engine.step()
    engine.step()
    assert [len(row.draft_token_ids) for row in engine.executor.steps[-1].scheduled] == drafts
    engine.run()


def test_a_request_without_drafts_leaves_its_share_to_others() -> None:
    engine = drafting_engine(max_step_rows=6)
    engine.drafter.guess = lambda token_ids: [] if token_ids[0] == 1 else right(token_ids, 9)
    for name, first in (("a", 1), ("b", 2)):
        engine.add(add_request(name, [first, 3], 12))
    engine.step()
    engine.step()
    assert [len(row.draft_token_ids) for row in engine.executor.steps[-1].scheduled] == [0, 4]
    engine.run()


def test_requests_overlap_steps_unless_they_wait_for_drafts() -> None:
    engine = drafting_engine(max_in_flight=2)
    engine.drafter.guess = lambda token_ids: [] if token_ids[0] == 1 else right(token_ids)
    engine.drafter.wants = lambda request: request.token_ids[0] != 1  # type: ignore[method-assign]
    for name, first in (("a", 1), ("b", 2)):
        engine.add(add_request(name, [first, 3], 5))
    engine.run()
    rows = [
        [(row.request_id, len(row.draft_token_ids)) for row in step.scheduled] for step in engine.executor.steps
    ]
    assert rows[:3] == [[("a", 0), ("b", 0)], [("a", 0)], [("a", 0), ("b", 3)]]


def test_the_drafter_gets_what_was_accepted() -> None:
    engine = engine_with("right_and_wrong")
    engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert (engine.drafter.num_drafted, engine.drafter.num_accepted) == (10, 4)


@pytest.mark.parametrize("text", ["a", "b", "c", "d"])
def test_a_guided_request_has_a_mask_for_each_draft(text: str) -> None:
    engine = drafting_engine(grammars=GrammarGate(FakeGrammars))
    engine.drafter.guess = right
    answer = engine.add(add_request("a", PROMPT, 30, constraint=constraint(text)))
    engine.run()
    assert answer.token_ids == guided_output(PROMPT, 30, text)
    assert engine.drafter.num_accepted


def test_nan_after_an_accepted_draft_ends_the_next_step() -> None:
    def model(token_ids: Sequence[int]) -> int:
        return NAN if len(token_ids) == len(PROMPT) + 3 else next_token(token_ids)

    engine = drafting_engine(model=model)
    engine.drafter.guess = right
    answer = engine.add(add_request("a", PROMPT, 9))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 3)
    assert answer.finish_reason is FinishReason.ERROR
    assert engine.scheduler.num_corrupted_requests == 1


def test_an_abort_with_drafts_in_flight_leaves_nothing() -> None:
    engine = drafting_engine(max_in_flight=2, lookahead=0)
    engine.drafter.guess = right
    engine.add(add_request("a", PROMPT, 9))
    engine.add(add_request("b", PROMPT[::-1], 9))
    while not any(row.draft_token_ids for step in engine.executor.steps for row in step.scheduled):
        engine.step()
    engine.core.abort(FRONTEND, ["a"])
    engine.run()
    assert engine.answers["b"].token_ids == expected_output(PROMPT[::-1], 9)


def test_steps_are_numbered_from_one() -> None:
    engine = drafting_engine(max_in_flight=2)
    engine.add(add_request("a", PROMPT, 3))
    engine.run()
    numbers = [step.number for step in engine.executor.steps]
    assert numbers == list(range(1, len(numbers) + 1))
