from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvasir.engine.drafting.past_outputs import MAX_VOLUMES, PastOutputs


def tokens(*ids: int) -> "array[int]":
    return array("I", ids)


def found(past: PastOutputs, key: bytes, ngram: Sequence[int]) -> list[int | None]:
    """Return the tokens that follow the n-gram, the newest first."""
    past.index(key, 10_000)
    return [text[place + 1] for text, place in past.places(key, tokens(*ngram))]


def test_past_outputs_of_other_keys_are_not_found() -> None:
    past = PastOutputs(2, max_outputs=10)
    past.add(b"a", tokens(1, 2, 3))
    past.add(b"b", tokens(1, 2, 4))
    assert found(past, b"a", [1, 2]) == [3]
    assert found(past, b"b", [1, 2]) == [4]
    assert found(past, b"c", [1, 2]) == []


def test_past_outputs_are_found_newest_first() -> None:
    past = PastOutputs(2, max_outputs=20)
    for last in range(10, 18):
        past.add(b"", tokens(1, 2, last))
    assert found(past, b"", [1, 2]) == list(range(17, 9, -1))


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 30)), max_size=60))
def test_past_outputs_stay_within_their_bounds(added: list[tuple[bytes, int]]) -> None:
    past = PastOutputs(2, max_outputs=9, max_tokens=100)
    for key, length in added:
        past.add(key, tokens(*range(1, length + 1)))
        held = [volume for volumes in past._by_key.values() for volume in volumes]
        assert sum(len(volume.text) for volume in held) == past.num_tokens <= 100
        assert sum(volume.num_outputs for volume in held) == past.num_outputs <= 9
        assert all(past._by_key.values())


def test_past_outputs_of_many_keys_are_bounded() -> None:
    past = PastOutputs(2, max_outputs=10**6)
    for number in range(MAX_VOLUMES + 9):
        past.add(number.to_bytes(4), tokens(1, 2, 3))
    assert len(past._by_key) == past.num_outputs == MAX_VOLUMES
    assert found(past, (8).to_bytes(4), [1, 2]) == []
    assert found(past, (9).to_bytes(4), [1, 2]) == [3]


def test_past_outputs_can_be_switched_off() -> None:
    past = PastOutputs(2, max_outputs=0)
    past.add(b"", tokens(1, 2, 3))
    assert past.num_tokens == 0
