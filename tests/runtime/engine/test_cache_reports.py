"""Frontends know what the prefix cache holds, whatever happens to it and whenever they join."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.engine import cache_reports
from kvasir.engine.cache_reports import CacheReports
from kvasir.engine.kv.prefix_cache import PrefixCache
from kvasir.link.protocol import CacheEvents
from kvasir.request.hashing import HASH_BYTES, split_chain
from runtime.engine.core_harness import CoreHarness, add_request


def hash_of(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "little")


class Frontends:
    """Each frontend applies its messages, as the order of the link delivers them."""

    def __init__(self) -> None:
        self.held: dict[str, set[bytes]] = {}
        self.messages: list[CacheEvents] = []
        self._expected: dict[str, int] = {}

    def send(self, frontend: str, message: CacheEvents) -> None:
        self.messages.append(message)
        if message.sequence == 0:
            self._expected[frontend] = 0
            self.held[frontend] = set()
        assert message.sequence == self._expected[frontend]
        self._expected[frontend] += 1
        held = self.held[frontend]
        if message.reset:
            held.clear()
        stored, evicted = split_chain(message.stored), split_chain(message.evicted)
        assert not set(stored) & set(evicted)
        held.difference_update(evicted)
        held.update(stored)


@dataclass
class Reported:
    cache: PrefixCache = field(default_factory=PrefixCache)
    num_blocks: int = 8
    now: float = 0.0

    def __post_init__(self) -> None:
        self.frontends = Frontends()
        self.reports = CacheReports(self.cache, self.num_blocks, self.frontends.send, lambda: self.now)


def finish(reports: CacheReports) -> None:
    while reports.has_snapshot:
        reports.send_part()
    reports.before_waiting()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 3), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("reset"), st.just(0), st.just(0)),
        st.tuples(st.just("follow"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("distrust"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("windows", [(None,), (None, 6), (7,)])
@settings(deadline=None)
@given(operations=operations, part=st.integers(1, 5))
def test_what_frontends_hold_is_what_the_cache_holds(
    windows: tuple[int | None, ...], operations: list[tuple[str, int, int]], part: int
) -> None:
    """A pool so small that it evicts all the time; frontends come, go and come again in the middle."""
    engine = CoreHarness(num_blocks=24, windows=windows, max_num_seqs=3, budget=16, max_model_len=40)
    frontends, cache = Frontends(), engine.blocks.pool.cache
    assert cache is not None
    reports = CacheReports(cache, engine.blocks.pool.num_blocks, frontends.send, lambda: 0.0)
    reports._part = part
    following: set[str] = set()
    for number, (name, first, second) in enumerate(operations):
        live = list(engine.scheduler.requests.values())
        match name:
            case "request":
                prompt = [20 + first] * min(second, 12) + [30 + number] * (second // 3) + [5]
                engine.add(add_request(f"r{number}", prompt))
            case "step":
                for _ in range(first):
                    if engine.core.has_work:
                        engine.step()
                    reports.after_step()
            case "reset" if not engine.blocks.pool.num_used:
                engine.blocks.reset_prefix_cache()
            case "follow":
                reports.follow(f"f{first}")
                following.add(f"f{first}")
            case "forget":
                reports.forget(f"f{first}")
                following.discard(f"f{first}")
            case "abort" if live:
                engine.scheduler.abort(live[first % len(live)])
            case "distrust" if live:
                engine.blocks.distrust(live[first % len(live)])
    finish(reports)
    expected = set(cache.hashes(range(1, engine.blocks.pool.num_blocks + 1)))
    for frontend in following:
        assert frontends.held.get(frontend, set()) == expected


def test_a_hash_that_leaves_during_the_snapshot_is_taken_back() -> None:
    """Stored before the snapshot's part and evicted after it: both within the time of one report."""
    engine = Reported()
    engine.reports.follow("f")
    engine.cache.put(0, hash_of(1), 1)
    engine.reports.send_part()
    engine.cache.evict(1)
    finish(engine.reports)
    assert engine.frontends.held["f"] == set()


def test_a_busy_engine_reports_from_time_to_time() -> None:
    engine = Reported()
    engine.reports.follow("f")
    finish(engine.reports)
    count = len(engine.frontends.messages)
    engine.cache.put(0, hash_of(1), 1)
    engine.reports.after_step()
    engine.cache.put(0, hash_of(2), 2)
    engine.reports.after_step()
    assert len(engine.frontends.messages) == count + 1
    engine.now += cache_reports.REPORT_SECONDS
    engine.reports.after_step()
    assert len(engine.frontends.messages) == count + 2
    assert engine.frontends.held["f"] == {hash_of(1), hash_of(2)}


def test_a_snapshot_comes_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "REPORT_HASHES", 4)
    engine = Reported(num_blocks=10)
    for number in range(1, 11):
        engine.cache.put(0, hash_of(number), number)
    engine.reports.follow("f")
    engine.reports.after_step()
    assert len(engine.frontends.held["f"]) == 4
    finish(engine.reports)
    assert len(engine.frontends.held["f"]) == 10
    assert max(len(message.stored) for message in engine.frontends.messages) == 4 * HASH_BYTES


def test_many_changes_are_reported_before_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "REPORT_HASHES", 4)
    engine = Reported(num_blocks=20)
    engine.reports.follow("f")
    finish(engine.reports)
    engine.cache.put(0, hash_of(1), 1)
    engine.reports.after_step()
    for number in range(2, 6):
        engine.cache.put(0, hash_of(number), number)
    engine.reports.after_step()
    assert len(engine.frontends.held["f"]) == 5


def test_without_a_frontend_nothing_is_noted() -> None:
    engine = Reported()
    engine.reports.follow("f")
    engine.reports.forget("f")
    engine.cache.put(0, hash_of(1), 1)
    assert engine.cache.log is None
    assert CacheReports(None, 8, engine.frontends.send).has_snapshot is False
