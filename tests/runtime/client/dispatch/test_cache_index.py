"""The index of prefix caches against plain sets, and the limits of its memory."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.client.dispatch import cache_index
from kvasir.client.dispatch.cache_index import CacheIndex
from kvasir.link.protocol import CacheEvents
from kvasir.request.hashing import HASH_BYTES, chain_root, packed_chain, split_chain
from kvasir.request.tokens import token_array


def chain_of(*tokens: int) -> bytes:
    """The chain of a prompt with one token per block."""
    return packed_chain(chain_root(), token_array(tokens), 1)


def packed(hashes: set[bytes]) -> bytes:
    return b"".join(sorted(hashes))


ENGINES = ("a", "b", "c")
CHAINS = [chain_of(*range(10)), chain_of(0, 1, 2, 13, 14, 15), chain_of(20, 21)]
HASHES = sorted({block_hash for chain in CHAINS for block_hash in split_chain(chain)})
some_hashes = st.sets(st.sampled_from(HASHES))


class Reporting:
    def __init__(self, index: CacheIndex, name: str) -> None:
        self.index, self.name = index, name
        self.held: set[bytes] = set()
        self.sequence = 0

    def report(self, stored: set[bytes], evicted: set[bytes], reset: bool = False) -> None:
        self.index.apply(self.name, CacheEvents(self.sequence, packed(stored), packed(evicted), reset))
        self.sequence += 1
        self.held = ((set() if reset else self.held) - evicted) | stored

    def restart(self) -> None:
        self.sequence, self.held = 0, set()


def leading(chain: bytes, held: set[bytes]) -> int:
    for place, block_hash in enumerate(split_chain(chain)):
        if block_hash not in held:
            return place
    return len(chain) // HASH_BYTES


@pytest.mark.parametrize("slice_of", [1, 4096])
@settings(deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(ENGINES),
            st.sampled_from(["report", "report", "report", "reset", "forget", "snapshot"]),
            some_hashes,
            some_hashes,
        ),
        max_size=40,
    )
)
def test_the_index_has_the_hashes_that_engines_report(
    slice_of: int, events: list[tuple[str, str, set[bytes], set[bytes]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_index, "SLICE", slice_of)
        index = CacheIndex()
        engines = {name: Reporting(index, name) for name in ENGINES}
        for name, kind, stored, evicted in events:
            engine = engines[name]
            match kind:
                case "report" | "reset":
                    engine.report(stored, evicted - stored, reset=kind == "reset")
                case "forget":
                    index.forget(name)
                    engine.restart()
                case "snapshot":
                    engine.restart()
                    engine.report(stored, set())
            for each in engines.values():
                assert index.hashes_of(each.name) == each.held
            for chain in CHAINS:
                leads = index.lookup(chain, ENGINES, now=0.0).expected
                assert leads == [leading(chain, engines[each].held) for each in ENGINES]
        for name in ENGINES:  # cleaning goes on with later reports, and leaves nothing
            index.forget(name)
        cleaner = Reporting(index, "cleaner")
        for _ in range(3 * len(HASHES)):
            cleaner.report({HASHES[0]}, set())
        assert len(index) == 1


def test_missing_report_empties_an_engine_until_a_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    index, chain = CacheIndex(), CHAINS[0]
    index.apply("a", CacheEvents(0, chain))
    with caplog.at_level(logging.ERROR):
        index.apply("a", CacheEvents(2, CHAINS[1]))
        index.apply("a", CacheEvents(3, CHAINS[1]))
    assert len(caplog.records) == 1
    assert index.lookup(chain, ["a"], 0.0).expected == [0]
    index.apply("a", CacheEvents(0, chain))
    assert index.lookup(chain, ["a"], 0.0).expected == [10]


def test_half_a_hash_is_not_read_and_leaves_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    index, chain = CacheIndex(), CHAINS[0]
    index.apply("a", CacheEvents(0, chain))
    index.apply("a", CacheEvents(1, b"half"))
    assert "half a hash" in caplog.text
    assert index.lookup(chain, ["a"], 0.0).expected == [10]
    index.apply("a", CacheEvents(2, CHAINS[2]))
    assert index.hashes_of("a") == set()


def test_changes_before_a_snapshot_are_dropped() -> None:
    """They were sent for an earlier connection of the same frontend."""
    index = CacheIndex()
    index.apply("a", CacheEvents(7, CHAINS[0]))
    assert index.hashes_of("a") == set()
    index.apply("a", CacheEvents(0, CHAINS[2]))
    assert index.lookup(CHAINS[2], ["a"], 0.0).expected == [2]


def test_blocks_on_their_way_count_until_their_time() -> None:
    index, chain = CacheIndex(), CHAINS[0]
    index.apply("a", CacheEvents(0, chain[: 3 * HASH_BYTES]))
    index.predict("a", chain, 3, now=0.0, until=2.0)
    index.predict("b", chain, 0, now=0.0, until=1.0)
    assert index.lookup(chain, ["a", "b", "c"], 0.5).expected == [10, 10, 0]
    assert index.lookup(chain, ["b", "a"], 1.5).expected == [0, 10]
    index.apply("a", CacheEvents(1, chain[3 * HASH_BYTES : 5 * HASH_BYTES]))
    assert index.lookup(chain, ["a"], 2.5).expected == [5]


def test_prompt_finds_the_beginning_of_one_on_its_way() -> None:
    """Predictions have steps of eight blocks."""
    index = CacheIndex()
    index.predict("a", chain_of(*range(30)), 0, now=0.0, until=1.0)
    assert index.lookup(chain_of(*range(20), *range(90, 99)), ["a"], 0.0).expected == [16]
    assert index.lookup(chain_of(*range(7)), ["a"], 0.0).expected == [0]
    index.apply("b", CacheEvents(0, chain_of(*range(20))))
    index.predict("b", chain_of(*range(30)), 20, now=0.0, until=1.0)
    assert index.lookup(chain_of(*range(28)), ["a", "b"], 0.0).expected == [24, 24]
    assert index.lookup(chain_of(*range(22)), ["a", "b"], 0.0).expected == [16, 20]


def test_predictions_of_a_lost_engine_are_gone_at_once() -> None:
    index, chain = CacheIndex(), CHAINS[0]
    index.predict("a", chain, 0, now=0.0, until=9.0)
    index.predict("b", chain, 0, now=0.0, until=9.0)
    index.forget("a")
    index.predict("c", CHAINS[2], 0, now=0.0, until=9.0)  # may get a's place
    assert index.lookup(chain, ["a", "b", "c"], 1.0).expected == [0, 10, 0]


def test_predictions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_index, "MAX_PREDICTED", 2)
    index = CacheIndex()
    index.predict("a", CHAINS[0], 0, now=0.0, until=1.0)
    index.predict("a", CHAINS[1], 3, now=0.0, until=2.0)
    assert index.lookup(CHAINS[0], ["a"], 0.0).expected == [0]
    index.predict("a", CHAINS[1], 0, now=0.0, until=3.0)
    assert index.lookup(CHAINS[1], ["a"], 0.0).expected == [6]


def test_full_index_keeps_fewer_blocks_and_compares_engines(caplog: pytest.LogCaptureFixture) -> None:
    index = CacheIndex(limit=1000)
    shared, long = chain_of(*range(400)), chain_of(*range(400), *range(1000, 1400))
    index.apply("a", CacheEvents(0, long))
    index.apply("b", CacheEvents(0, shared))
    for number in range(40):
        index.apply("c", CacheEvents(number, chain_of(*range(10_000 * number, 10_000 * number + 200))))
    assert len(index) <= 1000 * 1.25
    assert index.share < 1
    assert "it keeps 1 of" in caplog.text
    a, b, other = index.lookup(long, ["a", "b", "unknown"], 0.0).expected
    assert 700 < a <= 800
    assert 300 < b <= 400
    assert other == 0
    index.predict("b", long, b, now=0.0, until=1.0)
    assert index.lookup(long, ["a", "b"], 0.0).expected == [a, 800]
