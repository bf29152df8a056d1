from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.kv.kv_manager import UNLIMITED, KVManager, longest_sequence
from kvasir.engine.kv.prefix_cache import PrefixCache
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.kv_configs import kv_config, kv_manager

Windows = tuple[int | None, ...]
Content = tuple[int, tuple[int, ...]]
"""A group, and all tokens up to the end of a full block."""


# ------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True)
class Arrive:
    family: int
    """Prompts of one family begin alike."""
    shared: int
    own: int


@dataclass(frozen=True)
class Compute:
    index: int
    tokens: int


@dataclass(frozen=True)
class Release:
    index: int


Event = Arrive | Compute | Release


@dataclass
class Model:
    """Requests that run at the same time, and the content that each block holds after their steps."""

    windows: Windows
    block_size: int
    chunk: int
    manager: KVManager
    running: list[EngineRequest] = field(default_factory=list)
    contents: dict[int, Content] = field(default_factory=dict)
    arrived: int = 0

    def happen(self, event: Event) -> None:
        match event:
            case Arrive():
                self.arrive(event)
            case Compute(index, tokens) if self.running:
                self.compute(self.running[index % len(self.running)], min(tokens, self.chunk))
            case Release(index) if self.running:
                self.manager.release(self.running.pop(index % len(self.running)))
        self.check()

    def arrive(self, event: Arrive) -> None:
        self.arrived += 1
        prompt = [1 + event.family] * event.shared + [100 + self.arrived] * event.own
        request = EngineRequest("frontend", add_request(f"r{self.arrived}", prompt))
        cost, free = self.manager.cost_of(request), self.manager.pool.num_free
        if not self.manager.pool.can_allocate(cost):
            return
        expected = self.longest_prefix(request)
        tables = self.manager.admit(request)
        self.running.append(request)
        assert request.num_computed_tokens == expected * self.block_size
        assert self.manager.pool.num_free == free - cost
        assert tables == [table.ids for table in request.block_tables]
        for group, table in enumerate(tables):
            for place in range(self.first_read(group, request.num_computed_tokens), expected):
                assert self.contents[table[place]] == self.content(request, group, place)
        self.compute(request, self.chunk)

    def compute(self, request: EngineRequest, tokens: int) -> None:
        """Compute this many tokens; a request without free blocks is released, as if it were preempted."""
        if request.num_computed_tokens == request.num_tokens:
            request.token_ids.append(7)
        start = request.num_computed_tokens
        end = min(start + tokens, request.num_tokens)
        if end > request.num_slots:
            missing = self.manager.missing(request, end)
            if not self.manager.pool.can_allocate(sum(missing)):
                self.running.remove(request)
                self.manager.release(request)
                return
            before = [len(table.ids) for table in request.block_tables]
            new = self.manager.grow(request, missing)
            assert new == [table.ids[n:] for table, n in zip(request.block_tables, before, strict=True)]
        for group, table in enumerate(request.block_tables):
            for place in range(self.first_read(group, start), start // self.block_size):
                assert self.contents[table.ids[place]] == self.content(request, group, place)
            for place in range(start // self.block_size, -(-end // self.block_size)):
                self.contents.pop(table.ids[place], None)
            for place in range(start // self.block_size, end // self.block_size):
                self.contents[table.ids[place]] = self.content(request, group, place)
        request.num_computed_tokens = end
        self.manager.remember(request)

    def content(self, request: EngineRequest, group: int, place: int) -> Content:
        return group, tuple(request.token_ids[: (place + 1) * self.block_size])

    def first_read(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def longest_prefix(self, request: EngineRequest) -> int:
        cache = self.manager.pool.cache
        assert cache is not None
        cached = {content for block_id, content in self.contents.items() if block_id in cache}
        for length in range((request.num_tokens - 1) // self.block_size, 0, -1):
            needed = {
                self.content(request, group, place)
                for group in range(len(self.windows))
                for place in range(self.first_read(group, length * self.block_size), length)
            }
            if needed <= cached:
                return length
        return 0

    def check(self) -> None:
        """Blocks are shared only if they have the same content, and are used as often as they stand in tables."""
        pool = self.manager.pool
        uses: dict[int, list[Content]] = {}
        for request in self.running:
            for group, table in enumerate(request.block_tables):
                assert not any(table.ids[: table.first])
                for place, block_id in enumerate(table.blocks, table.first):
                    uses.setdefault(block_id, []).append(self.content(request, group, place))
        assert 0 not in uses
        assert pool.num_used == len(uses)
        for block_id, contents in uses.items():
            assert len(contents) == pool.users(block_id)
            assert len(set(contents)) == 1


windows_of_groups = st.sampled_from(
    [(None,), (None, 4), (6,), (None, 1), (9, 3), (None, 5, 5, 13)],
)
events = st.lists(
    st.builds(Arrive, st.integers(0, 2), st.integers(0, 40), st.integers(1, 12))
    | st.builds(Compute, st.integers(0, 9), st.integers(1, 12))
    | st.builds(Compute, st.integers(0, 9), st.integers(1, 12))
    | st.builds(Release, st.integers(0, 9)),
    max_size=50,
)


@settings(deadline=None)
@given(windows_of_groups, st.integers(1, 5), st.integers(1, 12), st.integers(5, 60), events)
def test_requests_find_what_blocks_hold_and_nothing_leaks(
    windows: Windows, block_size: int, chunk: int, num_blocks: int, happenings: list[Event]
) -> None:
    manager = kv_manager(num_blocks, block_size, windows, longest_chunk=chunk)
    model = Model(windows, block_size, chunk, manager)
    for event in happenings:
        model.happen(event)
    for request in model.running:
        manager.release(request)
    manager.check_idle()


# ---------------------------------------------------------------------------------------------- single behaviours


def blocks_held(engine: CoreHarness) -> int:
    return engine.blocks.pool.num_used


def test_a_window_frees_blocks_between_the_chunks_of_a_prompt() -> None:
    engine = CoreHarness(num_blocks=40, block_size=4, budget=8, windows=(8,))
    answer = engine.add(add_request("a", [5] * 120, 3))
    held = []
    while engine.core.has_work:
        engine.step()
        held.append(blocks_held(engine))
    assert max(held) == 5  # 7 tokens before a chunk of 8 tokens lie in five blocks of 4 at most
    assert answer.token_ids == expected_output([5] * 120, 3)


def test_a_decoding_request_keeps_its_window_only() -> None:
    engine = CoreHarness(num_blocks=64, block_size=4, windows=(None, 8))
    engine.add(add_request("a", [5] * 9, 100))
    for _ in range(60):
        engine.step()
    request = engine.scheduler.requests["a"]
    full, window = request.block_tables
    assert len(full.blocks) == -(-request.num_computed_tokens // 4)
    assert len(window.blocks) <= 3
    engine.run()


def test_a_prompt_longer_than_a_pool_of_windows_is_served() -> None:
    engine = CoreHarness(num_blocks=8, block_size=4, budget=8, windows=(8,))
    assert engine.blocks.longest_sequence == UNLIMITED
    answer = engine.add(add_request("a", list(range(1, 301)), 40))
    engine.run()
    assert answer.token_ids == expected_output(list(range(1, 301)), 40)


def test_a_window_needs_its_last_blocks_only_to_find_a_prefix() -> None:
    """The pool is too small for the whole prompt, so its beginning is gone when the second request arrives."""
    engine = CoreHarness(num_blocks=8, block_size=4, budget=8, windows=(8,))
    prompt = list(range(1, 101))
    engine.add(add_request("first", prompt, 1))
    engine.run()
    again = engine.add(add_request("again", [*prompt, 7], 1))
    engine.run()
    assert again.num_cached_tokens == [100]


@dataclass(frozen=True)
class CachedPrompt:
    """An engine with full attention and a window. Its cache has 40 tokens of a prompt: ten blocks of each group."""

    engine: CoreHarness
    prompt: list[int]
    cache: PrefixCache
    full: list[int]
    window: list[int]

    def cached_tokens(self) -> int | None:
        """Return how many tokens a second request with the prompt finds in the cache."""
        answer = self.engine.add(add_request("again", self.prompt, 1))
        self.engine.run()
        [cached] = answer.num_cached_tokens
        return cached


@pytest.fixture
def cached_prompt() -> CachedPrompt:
    engine = CoreHarness(num_blocks=40, block_size=4, windows=(None, 8))
    prompt = list(range(1, 42))
    engine.add(add_request("first", prompt, 1))
    engine.run()
    request = EngineRequest("frontend", add_request("again", prompt, 1))
    engine.blocks.cost_of(request)
    cache = engine.blocks.pool.cache
    assert request.lookup is not None
    assert cache is not None
    full, window = request.lookup.tables
    return CachedPrompt(engine, prompt, cache, full, window)


def test_a_window_finds_only_the_blocks_that_it_reads(cached_prompt: CachedPrompt) -> None:
    assert (len(cached_prompt.full), len(cached_prompt.window)) == (10, 10)
    assert cached_prompt.window[:8] == [0] * 8
    assert all(cached_prompt.window[8:])
    assert cached_prompt.cached_tokens() == 40


def test_full_attention_limits_the_prefix_of_all_groups(cached_prompt: CachedPrompt) -> None:
    cached_prompt.cache.evict(cached_prompt.full[6])
    cached_prompt.cache.evict(cached_prompt.window[9])
    assert cached_prompt.cached_tokens() == 24


def test_a_window_limits_the_prefix_of_full_attention(cached_prompt: CachedPrompt) -> None:
    cached_prompt.cache.evict(cached_prompt.window[8])
    assert cached_prompt.cached_tokens() == 32


def test_a_hash_of_one_group_is_not_found_in_another() -> None:
    manager = kv_manager(8, 4, (None, None))
    cache = manager.pool.cache
    assert cache is not None
    cache.put(0, b"x", 1)
    assert (cache.find(0, [b"x"], 1), cache.find(1, [b"x"], 1)) == ([1], [])
    cache.put(1, b"x", 2)
    cache.drop([b"x"])
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("num_blocks", "windows", "longest"),
    [
        (10, (None,), 41),
        (10, (None, None), 21),
        (10, (None, 8), 21),  # five blocks for the window and a chunk, five for all tokens
        (12, (None, 8), 29),
        (5, (8,), UNLIMITED),
        (4, (8,), 17),
        (10, (8, 8), UNLIMITED),
        (1, (None, 8), 1),
    ],
)
def test_longest_sequence_counts_the_blocks_of_all_groups(num_blocks: int, windows: Windows, longest: int) -> None:
    assert longest_sequence(kv_config(num_blocks, 4, windows), longest_chunk=8) == longest


def test_growth_of_a_window_ends_when_it_is_full() -> None:
    manager = kv_manager(64, 4, (None, 16))

    def growth(num_tokens: int) -> int:
        return manager.growth(EngineRequest("frontend", add_request("a", [1] * num_tokens)), 4)

    assert [growth(4), growth(12), growth(16), growth(20), growth(400)] == [8, 6, 5, 4, 4]
