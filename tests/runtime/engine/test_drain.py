import pytest

from kvasir.engine.drain import LINGER_SECONDS, Drain, DrainState
from kvasir.engine.waves import Flags

TIMEOUT, SETTLE = 30.0, 5.0


class Draining:
    """A drain that has begun at 0 on a clock that stands still."""

    def __init__(self, **facts: object) -> None:
        self.now, self.busy, self.handing_over = 0.0, False, False
        self.drain = Drain(TIMEOUT, SETTLE, lambda: self.busy, lambda: self.handing_over, lambda: self.now)
        self.drain.begin()
        for name, value in facts.items():
            setattr(self if hasattr(self, name) else self.drain, name, value)

    @property
    def seen(self) -> tuple[DrainState, float | None]:
        return self.drain.state, self.drain.seconds_left


@pytest.mark.parametrize(
    ("facts", "state", "seconds"),
    [
        ({"busy": True, "now": 1.0}, DrainState.FINISHING, 29.0),
        ({"busy": True, "settled": True, "handing_over": True}, DrainState.FINISHING, 30.0),
        ({"now": 1.0}, DrainState.SETTLING, 4.0),
        ({"handing_over": True, "now": 1.0}, DrainState.SETTLING, 4.0),
        ({"settled": True, "handing_over": True, "now": 1.0}, DrainState.LINGERING, 29.0),
        ({"handing_over": True, "now": 6.0}, DrainState.LINGERING, 24.0),
        ({"settled": True}, DrainState.OVER, 0.0),
        ({"now": 5.0}, DrainState.OVER, 0.0),
        ({"busy": True, "now": 30.0}, DrainState.OVERDUE, 0.0),
        ({"busy": True, "group_overdue": True}, DrainState.OVERDUE, 0.0),
        ({"handing_over": True, "now": 30.0}, DrainState.OVER, 0.0),
    ],
)
def test_drain_state_and_the_time_it_may_last(facts: dict[str, object], state: DrainState, seconds: float) -> None:
    assert Draining(**facts).seen == (state, seconds)


def test_drain_lingers_from_the_last_abort_until_its_limit() -> None:
    draining = Draining(settled=True, now=1.0)
    draining.drain.linger()
    assert draining.seen == (DrainState.LINGERING, LINGER_SECONDS)
    draining.now += LINGER_SECONDS
    assert draining.drain.state is DrainState.OVER
    draining.now = TIMEOUT - 0.5
    draining.drain.linger()
    assert draining.seen == (DrainState.LINGERING, 0.5)


def test_an_abort_before_the_drain_does_not_lengthen_it() -> None:
    drain = Drain(TIMEOUT, 0.0, lambda: False, lambda: False, lambda: 0.0)
    drain.linger()
    drain.begin()
    assert drain.state is DrainState.OVER


def test_a_serving_engine_waits_without_a_limit() -> None:
    drain = Drain(TIMEOUT, SETTLE, lambda: False, lambda: False)
    assert (drain.state, drain.seconds_left) == (DrainState.SERVING, None)
    assert drain.flags(work=True) == Flags(work=True)


def test_a_group_waits_for_an_engine_until_its_drain_is_over() -> None:
    assert Draining(busy=True).drain.flags(work=True) == Flags(True, drains=True, stays=True)
    assert Draining(settled=True).drain.flags(work=False) == Flags(drains=True, stays=False)
    assert Draining(busy=True, now=30.0).drain.flags(work=False) == Flags(drains=True, stays=True, overdue=True)
