import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.request.params import BOUNDS, SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.request_table import PENDING, RequestTable
from kvasir.worker.step import NewRow

PARAMS = SamplingParams(max_tokens=4, seed=3, temperature=0.5, top_k=7, top_p=0.75)


def new(name: str, tokens: list[int], prompt: int | None = None) -> NewRow:
    return NewRow(name, packed(tokens), len(tokens) if prompt is None else prompt, PARAMS)


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
    table = RequestTable(rows=1, max_model_len=16, block_size=4, kv_groups=2)
    table.add(new("long", list(range(16))))
    table.append_blocks(0, [[7, 8], [0, 0, 11, 12]])
    table.append_blocks(0, [[9, 10], []])
    assert table.block_tables[:, 0].tolist() == [[7, 8, 9, 10], [0, 0, 11, 12]]
    table.remove("long")
    table.add(new("short", [1, 2], prompt=1))
    table.append_blocks(0, [[3], [4]])
    assert table.block_tables[:, 0].tolist() == [[3, 0, 0, 0], [4, 0, 0, 0]]
    assert table.num_tokens[0] == 2
    assert table.num_prompt_tokens[0] == 1


def test_sampled_tokens_are_appended_up_to_the_context() -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(new("a", [1, 2, 3, 4]))
    table.add(new("b", [5]))
    rows = np.array([table.row_of("b"), table.row_of("a")])
    pending = table.append_pending(rows)
    assert table.tokens_of(table.row_of("b")).tolist() == [5, PENDING]
    table.settle(pending, np.array([6, 7]))
    assert table.tokens[table.row_of("b"), :2].tolist() == [5, 6]
    assert table.tokens[table.row_of("a"), :5].tolist() == [1, 2, 3, 4, 7]
    assert table.num_tokens[rows].tolist() == [2, 5]


def test_the_token_of_a_freed_row_is_skipped() -> None:
    table = RequestTable(rows=1, max_model_len=4, block_size=4)
    table.add(new("a", [1, 2]))
    pending = table.append_pending(np.array([0]))
    table.remove("a")
    table.add(new("b", [3, 4, 5]))
    table.settle(pending, np.array([9]))
    assert table.tokens_of(table.row_of("b")).tolist() == [3, 4, 5]


def test_tokens_of_another_stage_are_appended_by_request() -> None:
    table = RequestTable(rows=3, max_model_len=4, block_size=4)
    for name, tokens in {"a": [1, 2], "b": [5], "c": [8]}.items():
        table.add(new(name, tokens))
    table.append_chosen({"c": [9], "a": [3, 4]})
    assert [table.tokens_of(table.row_of(name)).tolist() for name in "abc"] == [[1, 2, 3, 4], [5], [8, 9]]


def test_a_stage_without_sampling_ignores_its_parameters() -> None:
    table = RequestTable(rows=1, max_model_len=4, block_size=4, samples=False)
    params = SamplingParams(max_tokens=1, seed=2**63, logprobs=1, prompt_logprobs=1, repetition_penalty=1.5)
    table.add(NewRow("a", packed([1, 2]), 2, params))
    assert not any((table.failures, table.rules, table.num_logprobs, table.prompt_scores))
    assert table.tokens_of(0).tolist() == [1, 2]
    table.remove("a")
    assert len(table) == 0


def test_sampling_parameters_stand_in_the_row() -> None:
    table = RequestTable(rows=1, max_model_len=4, block_size=4)
    table.add(new("a", [1]))
    assert not table.greedy[0]
    params = table.params[0]
    assert (params["temperature"], params["top_k"], params["top_p"], params["seed"]) == (0.5, 7, 0.75, 3)


def test_an_id_that_has_a_row_is_not_taken_again() -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(new("a", [1]))
    with pytest.raises(AssertionError, match="a has a row"):
        table.add(new("a", [1]))


def test_parameters_that_cannot_be_used_fail_their_row_only(caplog: pytest.LogCaptureFixture) -> None:
    table = RequestTable(rows=2, max_model_len=4, block_size=4)
    table.add(NewRow("bad", packed([1, 2]), 2, SamplingParams(max_tokens=1, seed=2**63, logprobs=1)))
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


def number(name: str) -> st.SearchStrategy[float | None]:
    """Every value that `check` accepts."""
    bounds, default = BOUNDS[name], getattr(PARAMS, name)
    if isinstance(default, float):
        return st.floats(bounds.least, bounds.most)
    accepted = st.integers(int(bounds.least), int(bounds.most))
    return accepted if default is not None else accepted | st.none()


NUMBERS = {
    name: number(name) for name in BOUNDS if name != "min_tokens"
}  # of which more than max_tokens is refused
CHECKED = st.builds(
    SamplingParams,
    stop_token_ids=TOKENS,
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-100, 100)).map(lambda bias: tuple(bias.items())),
    allowed_token_ids=st.just(()) | TOKENS,
    bad_words=st.lists(TOKENS, max_size=3).map(tuple),
    min_tokens=st.just(0) | st.just(1),
    **NUMBERS,
)


@given(CHECKED)
def test_parameters_that_pass_the_check_always_make_a_row(params: SamplingParams) -> None:
    params.check(10)
    table = RequestTable(rows=1, max_model_len=4, block_size=4)
    table.add(NewRow("a", packed([1, 2]), 1, params))
    assert not table.failures
    names = table.params.dtype.names
    assert names is not None
    assert set(names) == BOUNDS.keys() - {"logprobs", "prompt_logprobs"}
    assert all(table.params[name][0] == getattr(params, name) for name in names)
