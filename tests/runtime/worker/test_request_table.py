import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.params import SamplingParams
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.step import NewRow

PARAMS = SamplingParams(max_tokens=4, seed=3, temperature=0.5, top_k=7, top_p=0.75)


def new(name: str, tokens: list[int], prompt: int | None = None) -> NewRow:
    return NewRow(name, tokens, len(tokens) if prompt is None else prompt, PARAMS)


def test_a_request_keeps_its_row_until_it_is_removed() -> None:
    table = RequestTable(rows=2, max_model_len=16, block_size=4)
    table.add(new("a", [1, 2, 3]))
    table.add(new("b", [4]))
    row = table.row_of("a")
    table.remove("b")
    table.add(new("c", [5]))
    assert table.row_of("a") == row
    assert table.row_of("c") != row
    assert len(table) == 2


def test_a_row_used_anew_shows_nothing_of_its_predecessor() -> None:
    table = RequestTable(rows=1, max_model_len=16, block_size=4)
    table.add(new("long", list(range(16))))
    table.append_blocks(0, [7, 8, 9, 10])
    table.remove("long")
    table.add(new("short", [1, 2], prompt=1))
    table.append_blocks(0, [3])
    assert table.block_table[0].tolist() == [3, 0, 0, 0]
    assert table.num_tokens[0] == 2
    assert table.num_prompt_tokens[0] == 1


def test_sampled_tokens_are_appended_up_to_the_end_of_the_context() -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(new("a", [1, 2, 3, 4]))
    table.add(new("b", [5]))
    rows = np.array([table.row_of("b"), table.row_of("a")])
    table.append_tokens(rows, np.array([6, 7]))
    assert table.tokens[table.row_of("b"), :2].tolist() == [5, 6]
    assert table.tokens[table.row_of("a"), :5].tolist() == [1, 2, 3, 4, 7]
    assert table.num_tokens[rows].tolist() == [2, 5]


def test_sampling_parameters_stand_in_the_row() -> None:
    table = RequestTable(rows=1, max_model_len=4, block_size=4)
    table.add(new("a", [1]))
    assert not table.greedy[0]
    assert (table.temperature[0], table.top_k[0], table.top_p[0], table.seed[0]) == (0.5, 7, 0.75, 3)


def test_an_id_that_has_a_row_is_not_taken_again() -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(new("a", [1]))
    with pytest.raises(AssertionError, match="a has a row"):
        table.add(new("a", [1]))


def test_parameters_that_cannot_be_used_fail_their_row_only(caplog: pytest.LogCaptureFixture) -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(NewRow("bad", [1, 2], 2, SamplingParams(max_tokens=1, seed=2**63, logprobs=1)))
    table.add(new("good", [1, 2]))
    row = table.row_of("bad")
    assert list(table.failures) == [row]
    assert table.failures[row].startswith("OverflowError: ")
    assert table.greedy[row]
    assert table.num_logprobs == {}
    assert "request bad ends with an error" in caplog.text
    table.remove("bad")
    assert table.failures == {}


TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
CHECKED = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**63 - 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    temperature=st.floats(0, 1e6),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 2**63 - 1),
    stop_token_ids=TOKENS,
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.01, 100),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100)).map(lambda bias: tuple(bias.items())),
    allowed_token_ids=st.just(()) | TOKENS,
    bad_words=st.lists(TOKENS, max_size=3).map(tuple),
    min_tokens=st.just(0) | st.just(1),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)


@given(CHECKED)
def test_parameters_that_pass_the_check_always_make_a_row(params: SamplingParams) -> None:
    params.check(10)
    table = RequestTable(rows=1, max_model_len=4, block_size=4)
    table.add(NewRow("a", [1, 2], 1, params))
    assert table.seed[0] == params.seed
