from typing import Any

import pytest

from kvasir.chaos.answers import difference, join_chunk

ANSWER: dict[str, Any] = {
    "choices": [{"text": "a b", "logprobs": {"token_logprobs": [-0.5, None]}}],
    "usage": {"completion_tokens": 2},
}


def test_the_same_answer_has_no_difference() -> None:
    assert difference(ANSWER, ANSWER, 0.0) == ""


def test_log_probabilities_differ_within_the_tolerance() -> None:
    other = {**ANSWER, "choices": [{"text": "a b", "logprobs": {"token_logprobs": [-0.5004, None]}}]}
    assert difference(other, ANSWER, 0.001) == ""
    place = ".choices[0].logprobs.token_logprobs[0]"
    assert difference(other, ANSWER, 0.0001) == f"{place}: -0.5004 instead of -0.5"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"choices": [{**ANSWER["choices"][0], "text": "a c"}]}, ".choices[0].text: 'a c' instead of 'a b'"),
        ({"choices": []}, ".choices: 0 entries instead of 1"),
        ({"usage": {"completion_tokens": 3}}, ".usage.completion_tokens: 3 instead of 2"),
        ({"usage": {}}, ".usage: fields [] instead of ['completion_tokens']"),
        ({"usage": None}, ".usage: None instead of {'completion_tokens': 2}"),
    ],
)
def test_the_first_difference_is_described(changed: dict[str, Any], found: str) -> None:
    assert difference({**ANSWER, **changed}, ANSWER, 0.1) == found


def test_chunks_of_choices_are_joined() -> None:
    joined: dict[int, dict[str, Any]] = {}
    first = {"index": 1, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}
    assert join_chunk(joined, {"choices": [first]})
    assert join_chunk(joined, {"choices": [{"index": 0, "delta": {"content": "x"}}]})
    assert join_chunk(joined, {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]})
    assert joined[1] == {"index": 1, "delta": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}
    assert joined[0]["delta"] == {"content": "x"}


def test_pieces_of_calls_are_joined_by_their_index() -> None:
    """A move to another engine changes the pieces, but not the calls."""

    def joined(*pieces: dict[str, Any]) -> Any:
        choices: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            assert join_chunk(choices, {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
        return choices[0]["delta"]["tool_calls"]

    begun = {"index": 0, "type": "function", "function": {"name": "add", "arguments": ""}}
    other = {"index": 1, "type": "function", "function": {"name": "sub", "arguments": "{}"}}
    two = joined(
        begun,
        {"index": 0, "function": {"arguments": '{"a"'}},
        other,
        {"index": 0, "function": {"arguments": ":1}"}},
    )
    assert two == joined(begun, {"index": 0, "function": {"arguments": '{"a":1}'}}, other)
    assert [call["function"]["arguments"] for call in two] == ['{"a":1}', "{}"]


def test_chunk_without_a_token_is_known() -> None:
    assert not join_chunk({}, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert not join_chunk({}, {"choices": [], "usage": {}})
