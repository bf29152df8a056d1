"""Requests go where fewest are."""

from collections import Counter

from kvasir.client.router import Router
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import EngineStats


def engine_of(incarnation: str, usable: bool = True, stats: EngineStats | None = None) -> RemoteEngine:
    state = EngineState.READY if usable else EngineState.DRAINING
    return RemoteEngine(incarnation, 0, "node", state, None, 0.0, stats=stats)


def load(waiting: int, running: int) -> EngineStats:
    return EngineStats(waiting=waiting, running=running, kv_blocks_used=0, step=1)


def test_an_engine_that_is_not_usable_is_not_picked() -> None:
    router = Router(Counter[str]().__getitem__)
    usable = engine_of("b")
    assert router.pick([engine_of("a", usable=False), usable, engine_of("c", usable=False)]) is usable
    assert router.pick([engine_of("a", usable=False)]) is None
    assert router.pick([]) is None


def test_a_burst_between_two_reports_is_spread_evenly() -> None:
    in_flight = Counter[str]()
    router = Router(in_flight.__getitem__)
    engines = [engine_of("a"), engine_of("b"), engine_of("c")]
    for _ in range(30):
        picked = router.pick(engines)
        assert picked is not None
        in_flight[picked.incarnation] += 1
    assert in_flight == {"a": 10, "b": 10, "c": 10}


def test_engines_that_are_equal_take_turns_even_when_each_request_is_done_before_the_next() -> None:
    router = Router(Counter[str]().__getitem__)
    engines = [engine_of("a"), engine_of("b")]
    picked = Counter(engine.incarnation for _ in range(10) if (engine := router.pick(engines)))
    assert picked == {"a": 5, "b": 5}


def test_requests_of_other_frontends_count_and_own_ones_count_once() -> None:
    in_flight = Counter(a=4)
    router = Router(in_flight.__getitem__)
    a, b = engine_of("a", stats=load(1, 3)), engine_of("b", stats=load(2, 4))
    router.reported(a)  # its 4 are our own
    router.reported(b)  # its 6 are another frontend's
    picked = []
    for _ in range(4):
        engine = router.pick([a, b])
        assert engine is not None
        in_flight[engine.incarnation] += 1
        picked.append(engine.incarnation)
    assert picked[:2] == ["a", "a"]
    assert sorted(picked[2:]) == ["a", "b"]


def test_a_report_that_does_not_know_our_last_requests_yet_takes_nothing_away() -> None:
    in_flight = Counter(a=5)
    router = Router(in_flight.__getitem__)
    a, b = engine_of("a", stats=load(0, 1)), engine_of("b")
    router.reported(a)
    in_flight["b"] = 4
    assert router.pick([a, b]) is b


def test_what_a_lost_engine_reported_is_forgotten() -> None:
    router = Router(Counter[str]().__getitem__)
    a, b = engine_of("a", stats=load(0, 9)), engine_of("b")
    router.reported(a)
    router.forget("a")
    picked = {engine.incarnation for _ in range(2) if (engine := router.pick([a, b]))}
    assert picked == {"a", "b"}
