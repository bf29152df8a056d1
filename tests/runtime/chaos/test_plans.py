import pytest

from kvasir.chaos.disturbances import Disturbance, DisturbanceKind, Havoc, plan
from kvasir.chaos.questions import KINDS, STOP_STRING, questions, with_stop
from kvasir.config.options import ConfigError

HAVOC = Havoc(kills=5, freezes=3, drains=2)
ALL = frozenset(DisturbanceKind)


def test_seed_gives_the_same_plan() -> None:
    assert plan(HAVOC, 1, ALL) == plan(HAVOC, 1, ALL)
    assert plan(HAVOC, 1, ALL) != plan(HAVOC, 2, ALL)
    assert questions(40, "m", 64, 1) == questions(40, "m", 64, 1)
    assert questions(40, "m", 64, 1) != questions(40, "m", 64, 2)


def test_plan_has_each_disturbance() -> None:
    kinds = [disturbance.kind for disturbance in plan(HAVOC, 1, ALL)]
    assert sorted(kinds) == ["drain"] * 2 + ["freeze"] * 3 + ["kill"] * 5
    assert kinds != sorted(kinds)


def test_impossible_disturbance_is_refused() -> None:
    with pytest.raises(ConfigError, match="--freezes 3: possible here are drain, kill"):
        plan(HAVOC, 1, {DisturbanceKind.KILL, DisturbanceKind.DRAIN})


def test_every_engine_can_be_the_victim() -> None:
    victims = {Disturbance(DisturbanceKind.KILL, 0.0, draw / 100).victim(["0", "1", "2"]) for draw in range(100)}
    assert victims == {"0", "1", "2"}


def test_questions_have_every_kind_streamed_and_not() -> None:
    asked = questions(2 * len(KINDS), "m", 64, 1)
    assert {(one.kind, one.streamed) for one in asked} == {(kind, s) for kind in KINDS for s in (True, False)}
    assert len({one.body.get("prompt") or one.body["messages"][0]["content"] for one in asked}) == len(asked)


def test_stop_string_is_a_late_part_of_the_answer() -> None:
    question = next(one for one in questions(20, "m", 64, 1) if one.kind == STOP_STRING)
    answer = "The engines of a service share one queue."
    [stop] = with_stop(question, answer).body["stop"]
    assert stop in answer
    assert len(answer) - answer.index(stop) < 20
    assert "stop" not in with_stop(question, "").body
