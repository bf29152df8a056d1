import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.client.text.stop_strings import StopSearch, StopStrings

# Few letters: strings overlap, contain each other and repeat.
LETTERS = st.sampled_from("abé")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4)
TEXTS = st.text(LETTERS, max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def search_whole(text: str, stops: list[str], floor: int = 0) -> tuple[int, str] | None:
    for end in range(floor + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def run(stops: list[str], pieces: list[str], *, include: bool = False, ignored: int = 0) -> tuple[str, str | None]:
    """Return the released text and the string that ended it; the first `ignored` pieces must not end it."""
    search = StopSearch(StopStrings(stops), include)
    told = ""
    for index, piece in enumerate(pieces):
        told += search.push(piece, may_end=index >= ignored)
        if search.found is not None:
            return told, search.found
    return told + search.finish(), None


@given(text=TEXTS, stops=STOPS, cuts=CUTS, include=st.booleans())
@settings(deadline=None)
def test_any_split_ends_where_a_search_in_the_whole_text_does(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    found = search_whole(text, stops)
    if found is None:
        wanted: tuple[str, str | None] = text, None
    else:
        end, stop = found
        wanted = text[: end if include else end - len(stop)], stop
    assert run(stops, split(text, cuts), include=include) == wanted


@given(text=TEXTS, stops=STOPS, cuts=CUTS, ignored=st.integers(0, 5))
@settings(deadline=None)
def test_string_counts_if_it_ends_after_the_first_tokens(
    text: str, stops: list[str], cuts: list[int], ignored: int
) -> None:
    pieces = split(text, cuts)
    floor = len("".join(pieces[:ignored]))
    found = search_whole(text, stops, floor)
    wanted = (text, None) if found is None else (text[: found[0] - len(found[1])], found[1])
    assert run(stops, pieces, ignored=ignored) == wanted


@given(text=TEXTS, stops=STOPS, ignored=st.integers(0, 40))
@settings(deadline=None)
def test_only_beginnings_of_strings_are_held_back(text: str, stops: list[str], ignored: int) -> None:
    search = StopSearch(StopStrings(stops), include=False)
    told = ""
    for index, char in enumerate(text):
        told += search.push(char, may_end=index >= ignored)
        if search.found is not None:
            return
        held = text[len(told) : index + 1]
        assert len(held) < max(map(len, stops))
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "told", "stop"),
    [
        (["cde", "d"], "abcdef", "abc", "d"),
        (["bcd", "abcde"], "xabcde", "xa", "bcd"),
        (["b", "ab"], "xab", "x", "ab"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["日本"], "これは日本語", "これは", "日本"),
    ],
    ids=["earliest end", "earliest end, not start", "longest of one end", "overlap", "newlines", "wide characters"],
)
def test_the_string_that_completes_first_ends_the_text(stops: list[str], text: str, told: str, stop: str) -> None:
    for pieces in ([text], list(text)):
        assert run(stops, pieces) == (told, stop)


def test_text_that_begins_no_string_is_told_at_once() -> None:
    search = StopSearch(StopStrings(["<|end_of_turn|>"]), include=False)
    assert search.push("a < b <") == "a < b "
    assert search.push("|end") == ""
    assert search.push("ing") == "<|ending"


def test_nothing_is_left_to_report_after_a_stop_string() -> None:
    search = StopSearch(StopStrings(["stop"]), include=False)
    assert search.push("a st") == "a "
    assert search.push("op b") == ""
    assert search.found == "stop"
    assert search.finish() == ""


def test_held_text_is_reported_once() -> None:
    search = StopSearch(StopStrings(["stop"]), include=False)
    search.push("st")
    assert [search.finish(), search.finish()] == ["st", ""]
