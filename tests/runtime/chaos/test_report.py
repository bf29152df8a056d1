import pytest

from kvasir.chaos.answers import REFUSED, Answer
from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.chaos.questions import COMPLETIONS, Question
from kvasir.chaos.report import CheckedAnswer, Event, Report, gap_at, lines, passed, spread

QUESTION = Question("greedy", COMPLETIONS, {"stream": True})
EXPECTED = {"choices": [{"text": "ab"}]}


def exchange(
    sent: float = 0.0, chunks: tuple[float, ...] = (1.0, 2.0), error: str = "", text: str = "ab", code: str = ""
) -> CheckedAnswer:
    content = {} if error else {"choices": [{"text": text}]}
    answer = Answer(sent, ended=chunks[-1], chunks=list(chunks), content=content, error=error, code=code)
    return CheckedAnswer(QUESTION, answer, EXPECTED)


def test_lost_wrong_and_refused_requests_are_counted_apart() -> None:
    report = Report(
        seed=7,
        exchanges=[exchange(), exchange(text="ac"), exchange(error="cut"), exchange(error="no", code=REFUSED)],
    )
    figures = report.figures()
    assert [figures[name] for name in ("requests", "lost", "wrong", "refused")] == [4, 1, 1, 1]
    assert not passed(figures)
    text = "\n".join(lines(figures))
    assert "4 in 0 s: 1 lost, 1 wrong, 0 invalid, 1 refused" in text
    assert "problem: greedy, streamed: cut" in text
    assert "problem: greedy, streamed: .choices[0].text: 'ac' instead of 'ab'" in text


@pytest.mark.parametrize("count", ["lost", "wrong", "invalid", "refused"])
def test_any_damage_fails_the_run(count: str) -> None:
    figures = Report(seed=7, exchanges=[exchange()]).figures()
    assert passed(figures)
    assert not passed({**figures, count: 1})


def test_engine_that_stays_away_fails_the_run() -> None:
    figures = Report(seed=7, events=[Event(DisturbanceKind.KILL, "0", 1.5, recovery=None)]).figures()
    assert figures["disturbances"]["kill"]["not_recovered"] == 1
    assert not passed(figures)


def test_problems_name_the_disturbances_in_their_time() -> None:
    events = [Event(DisturbanceKind.FREEZE, "2", 1.5, 3.0), Event(DisturbanceKind.KILL, "1", 9.0, 3.0)]
    [problem] = Report(seed=7, exchanges=[exchange(error="cut")], events=events).figures()["problems"]
    assert problem == "greedy, streamed: cut (2.0 s, during freeze of engine 2)"


def test_stalls_are_gaps_above_those_of_undisturbed_streams() -> None:
    report = Report(
        seed=7,
        undisturbed_gaps=[0.5, 1.0],
        exchanges=[exchange(chunks=(1.0, 2.0)), exchange(chunks=(1.0, 5.0)), exchange(chunks=(1.0,))],
        events=[Event(DisturbanceKind.KILL, "0", 1.5, 3.0)],
    )
    kill = report.figures()["disturbances"]["kill"]
    assert kill["open_streams"] == 2
    assert kill["stall_seconds"] == {"count": 1, "p50": 4.0, "p99": 4.0, "max": 4.0}
    assert any("1 stalled: p50 4.00 s" in line for line in lines(report.figures()))


@pytest.mark.parametrize(
    ("at", "gap"),
    [
        (0.5, 4.0),  # before the first token: all that follows counts
        (1.5, 4.0),
        (5.5, 1.0),  # the long gap was over
        (6.5, 0.0),  # the stream was over
        (-1.0, 0.0),  # it had not begun
    ],
)
def test_gap_at_a_disturbance_begins_with_the_token_before_it(at: float, gap: float) -> None:
    assert gap_at(exchange(chunks=(1.0, 5.0, 6.0)).answer, at) == gap


def test_spread_has_percentiles() -> None:
    assert spread([float(n) for n in range(1, 201)]) == {"count": 200, "p50": 100.0, "p99": 198.0, "max": 200.0}
    assert spread([]) is None
