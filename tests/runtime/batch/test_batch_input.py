"""The lines of a batch file: good and bad ones, and that memory does not grow with their size."""

import json
import tracemalloc
from pathlib import Path

import pytest

from kvasir.batch import batch_input
from kvasir.batch.batch_input import BadLine, Survey, id_hash, parse_line, requests, survey
from runtime.batch.batch_lines import line, write


def test_parse_line_keeps_the_body_as_it_is() -> None:
    body = '{"prompt":  "é", "n": 12345678901234567890123, "x": 1.10}'
    request = parse_line(f'{{"custom_id": "é", "method": "POST", "url": "/v1/x", "body": {body}}}'.encode())
    assert (request.custom_id, request.url, bytes(request.body)) == ("é", "/v1/x", body.encode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "not JSON"),
        ('{"custom_id": "a"', "not JSON"),
        ('{"body": ' + "[" * 100_000, "not JSON"),
        ("[]", "expected object, got array"),
        (line(...), "missing required field custom_id"),
        (line(7), "custom_id"),
        (line(""), "custom_id has 0 characters"),
        (line("x" * 513), "custom_id has 513 characters"),
        (line(method="GET"), "method is 'GET'"),
        (line(url=...), "missing required field url"),
        (line(url="http://elsewhere/v1/completions"), "url is 'http://elsewhere"),
        (line(url="/v1/\n"), "url is"),
        (line(body=...), "missing required field body"),
        (line(body=[]), "body: expected object, got array"),
        (line(body={"stream": True}), "body.stream is set"),
    ],
)
def test_parse_line_refuses_what_is_no_request(text: str, reason: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(text.encode())
    assert reason in str(caught.value)


def test_survey_names_bad_lines_and_counts_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "in", line("a"), "", "nonsense", line("b"), line("a"), line("c"))
    named: list[tuple[int, str]] = []
    found = survey(path, {id_hash("b")}, lambda *each: named.append(each))
    assert (found.requests, found.answered, found.bad_lines) == (3, 1, {3, 5})
    assert [number for number, _ in named] == [3, 5]
    assert "same custom_id" in named[1][1]


def test_requests_yields_each_good_line_without_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "in", line("a"), "", "nonsense", line("b"), line("a"), line("c"))
    answered = {id_hash("b")}
    found = survey(path, answered, lambda *_: None)
    todo = [(number, request.custom_id) for number, request in requests(path, found, answered)]
    assert todo == [(1, "a"), (6, "c")]


def test_a_last_line_without_a_line_break_counts(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text(line("a"))
    assert [request.custom_id for _, request in requests(path, Survey(), set())] == ["a"]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_is_too_long_is_bad_and_not_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(batch_input, "MAX_LINE_BYTES", 2**16)
    path = write(tmp_path / "in", line("a"), line("b", body={"prompt": "x" * 2**24}), line("c")[:-2] + "}}" + end)
    tracemalloc.start()
    try:
        found = survey(path, set(), lambda *_: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.requests, found.bad_lines) == (2, {2})
    assert peak < 2**21


def test_survey_takes_few_bytes_per_line(tmp_path: Path) -> None:
    count = 20_000
    path = tmp_path / "in"
    with path.open("w") as file:
        file.writelines(line(f"request-{i}", body={"prompt": "x" * 1000}) + "\n" for i in range(count))
    tracemalloc.start()
    try:
        found = survey(path, set(), lambda *_: None)
        for _ in requests(path, found, set()):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.requests == count
    assert peak < 200 * count, peak / count


def test_id_hash_takes_half_a_surrogate_pair() -> None:
    assert id_hash(json.loads('"\\ud800"')) != id_hash("")
