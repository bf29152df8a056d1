"""What each row's request asks of the sampler, gathered from the table and applied, against plain Python."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import HostMemory
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.sampling.logits import Penalties
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.batch.sampling_inputs import SamplingInputs, SamplingPlan
from kvasir.worker.step import NewRow

V = 12
EOS = (0, 1)


@dataclass
class Case:
    prompt: list[int]
    output: list[int]
    params: SamplingParams


TOKEN = st.integers(0, V - 1)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    seed=st.just(0),
    stop_token_ids=st.lists(TOKEN, max_size=2).map(tuple),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, -1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    logit_bias=st.dictionaries(TOKEN, st.sampled_from([-100.0, -1.5, 3.0, 100.0]), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
    allowed_token_ids=st.sets(TOKEN, max_size=4).map(tuple),
    bad_words=st.lists(st.lists(TOKEN, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.integers(0, 5),
)
CASE = st.builds(
    Case,
    st.lists(TOKEN, min_size=1, max_size=8),
    st.lists(TOKEN, max_size=8),
    PARAMS | st.just(SamplingParams(9, 0)),
)


def expected_logits(logits: list[float], case: Case) -> list[float]:
    """Reference: in the documented order, token by token."""
    params, output = case.params, case.output
    forbidden = {word[-1] for word in params.bad_words if tuple(output[len(output) + 1 - len(word) :]) == word[:-1]}
    if len(output) < params.min_tokens:
        forbidden |= {*EOS, *params.stop_token_ids}
    allowed = set(params.allowed_token_ids or range(V))
    bias = dict(params.logit_bias)
    changed = []
    for token, value in enumerate(logits):
        if token not in (allowed - forbidden or allowed):
            value = -math.inf
        value += bias.get(token, 0.0)
        if token in case.prompt + output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty * (token in output)
        changed.append(value)
    return changed


def plan_of(table: RequestTable, names: Sequence[str]) -> SamplingPlan:
    inputs = SamplingInputs(table, Placement(torch.device("cpu"), torch.float32), HostMemory(0), V)
    return inputs.build(np.array([table.row_of(name) for name in names], np.int64))


def table_of(cases: Sequence[Case]) -> RequestTable:
    table = RequestTable(rows=len(cases) + 1, max_model_len=64, block_size=4, eos_token_ids=EOS)
    for index, case in enumerate(cases):
        table.add(NewRow(str(index), packed(case.prompt + case.output), len(case.prompt), case.params))
    return table


def changed(table: RequestTable, names: Sequence[str], logits: Tensor) -> Tensor:
    logits = logits.clone()
    plan = plan_of(table, names)
    if plan.changes is not None:
        plan.changes.apply_(logits)
    return logits


def logits_of(rows: int) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)) * 3


@given(st.lists(CASE, min_size=1, max_size=6))
@settings(deadline=None)
def test_each_row_of_a_crowd_is_what_the_reference_makes_of_it(cases: list[Case]) -> None:
    logits = logits_of(len(cases))
    result = changed(table_of(cases), [str(index) for index in range(len(cases))], logits)
    expected = torch.tensor([expected_logits(row, case) for row, case in zip(logits.tolist(), cases, strict=True)])
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@given(st.lists(CASE, min_size=2, max_size=5), st.data())
@settings(deadline=None)
def test_a_row_is_the_same_to_the_bit_in_a_crowd_and_alone(cases: list[Case], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(cases))))
    logits = logits_of(len(cases))
    crowd = changed(table_of(cases), [str(index) for index in order], logits[order])
    for place, index in enumerate(order):
        alone = changed(table_of([cases[index]]), ["0"], logits[index : index + 1])
        assert torch.equal(crowd[place], alone[0])


@given(CASE, st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_a_resumed_request_goes_on_as_one_never_stopped(case: Case, at: int) -> None:
    """One row has seen every token come, the other took its row with some of them."""
    whole = table_of([Case(case.prompt, [], case.params)])
    resumed = table_of([Case(case.prompt, case.output[:at], case.params)])
    logits = logits_of(1)
    for place in range(len(case.output) + 1):
        expected = changed(whole, "0", logits)
        if place >= at:
            assert torch.equal(changed(resumed, "0", logits), expected)
        if place < len(case.output):
            token = np.array(case.output[place : place + 1])
            for table in (whole, resumed) if place >= at else (whole,):
                table.settle(table.append_pending(np.array([table.row_of("0")])), token)


@given(CASE, st.integers(0, 8))
@settings(max_examples=200, deadline=None)
def test_drafts_count_in_the_places_after_them_only(case: Case, known: int) -> None:
    table = table_of([Case(case.prompt, case.output[:known], case.params)])
    drafts = case.output[known:]
    ahead = np.arange(len(drafts) + 1)
    logits = logits_of(1).repeat(len(ahead), 1)
    for _ in range(2):  # all drafts were rejected
        table.write_drafts(0, drafts)
        inputs = SamplingInputs(table, Placement(torch.device("cpu"), torch.float32), HostMemory(0), V)
        for is_awaited in (True, False):
            changes = inputs.build(np.zeros_like(ahead), ahead, is_awaited=is_awaited).changes
            result = logits.clone()
            if changes is not None:
                changes.apply_(result)
            for place in ahead.tolist() if is_awaited or drafts else ():
                alone = table_of([Case(case.prompt, case.output[: known + place], case.params)])
                assert torch.equal(result[place], changed(alone, "0", logits[:1])[0])


def test_a_row_used_anew_has_no_rules_of_its_predecessor() -> None:
    table = table_of([Case([3], [], SamplingParams(9, 0, min_tokens=4, logprobs=1, prompt_logprobs=1))])
    table.remove("0")
    table.add(NewRow("0", packed([3]), 1, SamplingParams(9, 0)))
    plan = plan_of(table, "0")
    assert plan.changes is None
    assert plan.logprobs is None
    assert not table.prompt_scores


def test_rows_without_options_are_not_changed_by_others() -> None:
    """Only entries of the rows that ask are in the plan."""
    ruled = SamplingParams(
        9, 0, allowed_token_ids=(2, 3), min_tokens=1, logit_bias=((4, 1.0),), frequency_penalty=1.0
    )
    table = table_of([Case([5], [6], SamplingParams(9, 0)), Case([5], [6], ruled), Case([5], [], ruled)])
    changes = plan_of(table, "012").changes
    assert changes is not None
    assert changes.allowed is not None
    assert changes.allowed.rows.tolist() == [1, 2]
    assert changes.allowed.entries.tokens.tolist() == [2, 3, 2, 3]
    assert changes.forbidden is not None
    assert (changes.forbidden.rows.tolist(), changes.forbidden.tokens.tolist()) == ([2, 2], [0, 1])
    assert changes.bias is not None
    assert changes.bias.entries.rows.tolist() == [1, 2]
    assert isinstance(changes.penalties, Penalties)
    assert changes.penalties.entries.rows.tolist() == [1]
    assert changes.penalties.entries.tokens.tolist() == [6]


def test_min_tokens_is_over_after_as_many() -> None:
    params = SamplingParams(9, 0, min_tokens=2, stop_token_ids=(7,))
    for output, masked in (([], {0, 1, 7}), ([5], {0, 1, 7}), ([5, 5], set())):
        result = changed(table_of([Case([3], output, params)]), "0", logits_of(1))
        assert set(torch.isinf(result[0]).nonzero()[:, 0].tolist()) == masked


def test_an_allowed_token_comes_even_where_all_are_forbidden() -> None:
    for params in (
        SamplingParams(9, 0, allowed_token_ids=(0, 1), min_tokens=3),
        SamplingParams(9, 0, allowed_token_ids=(0, 1), bad_words=((0,), (1,))),
    ):
        result = changed(table_of([Case([3], [], params)]), "0", logits_of(1))
        assert torch.isfinite(result[0]).nonzero()[:, 0].tolist() == [0, 1]
    everything = SamplingParams(9, 0, bad_words=tuple((token,) for token in range(V)))
    assert torch.equal(changed(table_of([Case([3], [], everything)]), "0", logits_of(1)), logits_of(1))


def test_random_rows_carry_their_parameters_and_output_positions() -> None:
    table = table_of(
        [
            Case([2] * 4, [], SamplingParams(9, 0, temperature=0.0, min_p=0.5)),
            Case([2] * 6, [2] * 3, SamplingParams(9, -7, temperature=0.5)),
            Case([2] * 5, [], SamplingParams(9, 8, top_k=3)),
            Case([2] * 6, [], SamplingParams(9, 9, top_p=0.25)),
            Case([2] * 6, [], SamplingParams(9, 10, min_p=0.5)),
            Case([2] * 6, [], SamplingParams(9, 11, min_p=0.25, top_p=0.5)),
        ]
    )
    plain, filtered, floored, both = plan_of(table, "310245").random_rows
    assert plain.rows.tolist() == [1]
    assert plain.temperature.tolist() == [[0.5]]
    assert plain.seeds.tolist() == [-7]
    assert plain.positions.tolist() == [3]
    assert (plain.top_k, plain.top_p, plain.min_p) == (None, None, None)
    assert filtered.rows.tolist() == [0, 3]
    assert filtered.positions.tolist() == [0, 0]
    assert filtered.top_k is not None
    assert filtered.top_p is not None
    assert filtered.top_k.tolist() == [[V], [3]]
    assert filtered.top_p.tolist() == [[0.25], [math.inf]]
    assert floored.rows.tolist() == [4]
    assert floored.min_p is not None
    assert floored.min_p.tolist() == [[0.5]]
    assert floored.top_k is None
    assert both.rows.tolist() == [5]
    assert both.min_p is not None
    assert both.top_p is not None


@pytest.mark.parametrize(
    ("names", "rows", "counts"), [("012", [0, 2], [3, 0]), ("1", None, None), ("21", [0], [0])]
)
def test_rows_that_report_log_probabilities(names: str, rows: list[int] | None, counts: list[int] | None) -> None:
    asking = [SamplingParams(9, 0, logprobs=3), SamplingParams(9, 0), SamplingParams(9, 0, logprobs=0)]
    reported = plan_of(table_of([Case([3], [], params) for params in asking]), names).logprobs
    assert (None if reported is None else reported.rows.tolist()) == rows
    assert (None if reported is None else reported.counts) == counts
