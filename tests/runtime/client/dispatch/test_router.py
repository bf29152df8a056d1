"""Requests go where they are probably served first."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kvasir.client.dispatch import router as router_module
from kvasir.client.dispatch.router import EngineChoice, Router
from kvasir.client.input.prompted import PromptHashes
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import (
    FEATURE_PREFIX_CACHE,
    CacheEvents,
    EngineStats,
    Ready,
    RequestOutput,
    RequestProgress,
)
from kvasir.request.hashing import HASH_BYTES
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import token_array

BLOCK_SIZE = 16
PARAMS = SamplingParams(max_tokens=8, seed=0)
_ids = itertools.count()


@dataclass
class Request:
    prompt: Sequence[int] = (1,)
    params: SamplingParams = PARAMS
    engine: str = ""
    adapter_digest: str = ""
    request_id: str = field(default_factory=lambda: f"r{next(_ids)}")

    def __post_init__(self) -> None:
        self.hashes = PromptHashes(token_array(self.prompt))

    @property
    def num_tokens(self) -> int:
        return len(self.prompt)


class Traffic:
    """A router, its engines, and a clock that stands still."""

    def __init__(self, *names: str, rows: int = 64, num_blocks: int = 10_000) -> None:
        self.now = 0.0
        self.router = Router(lambda: self.now)
        self.engines = {name: engine_of(name, rows=rows, num_blocks=num_blocks) for name in names}
        self.sequences = Counter[str]()

    def pick(self, request: Request | None = None) -> str:
        return self.choose(request or Request()).engine.incarnation

    def choose(self, request: Request) -> EngineChoice:
        choice = self.router.pick(self.engines.values(), request)
        assert choice is not None
        return choice

    def send(self, request: Request | None = None) -> str:
        request = request or Request()
        choice = self.choose(request)
        request.engine = choice.engine.incarnation
        self.router.sent(request, choice)
        return request.engine

    def serve(self, request: Request, prefill: float, decode: float, cached: int = 0) -> None:
        """Send the request, and go on until its end."""
        self.send(request)
        self.now += prefill
        output = RequestOutput(
            request.request_id, 1, 0, [7], num_cached_tokens=cached, progress=RequestProgress(0, prefill)
        )
        self.router.begun(request, output)
        self.now += decode
        self.router.left(request.request_id, request.engine)

    def holds(self, name: str, prompt: Sequence[int]) -> None:
        """The engine reports the blocks of this prompt."""
        hashing = self.engines[name].block_hashing
        assert hashing is not None
        chain = PromptHashes(token_array(prompt)).known(hashing)
        self.router.cache_changed(self.engines[name], CacheEvents(self.sequences[name], chain))
        self.sequences[name] += 1

    def report(self, name: str, *, running: int, waiting: int = 0, unfinished: int = 0, used: int = 0) -> None:
        self.engines[name].stats = EngineStats(waiting, running, used, 1, unfinished_tokens=unfinished)
        self.router.reported(self.engines[name])


def engine_of(name: str, usable: bool = True, rows: int = 64, num_blocks: int = 10_000) -> RemoteEngine:
    ready = Ready(BLOCK_SIZE, num_blocks, 10_000, rows, (FEATURE_PREFIX_CACHE,))
    state = EngineState.READY if usable else EngineState.DRAINING
    return RemoteEngine(name, 0, "node", state, None, 0.0, capacity=ready)


def test_an_engine_that_is_not_usable_is_not_picked() -> None:
    router, usable = Router(), engine_of("b")
    engines = [engine_of("a", usable=False), usable, engine_of("c", usable=False)]
    choice = router.pick(engines, Request())
    assert choice is not None
    assert choice.engine is usable
    assert router.pick(engines[:1], Request()) is None
    assert router.pick([], Request()) is None


def test_engine_without_a_known_capacity_can_be_picked() -> None:
    engine = RemoteEngine("a", 0, "node", EngineState.READY, None, 0.0)
    router, request = Router(), Request()
    choice = router.pick([engine], request)
    assert choice is not None
    assert choice.engine is engine
    router.sent(request, choice)


# ---------------------------------------------------------------------------------------------------- the load


def test_a_burst_between_two_reports_is_spread_evenly() -> None:
    traffic = Traffic("a", "b", "c")
    assert Counter(traffic.send() for _ in range(30)) == {"a": 10, "b": 10, "c": 10}


def test_equal_engines_take_turns_with_one_request_at_a_time() -> None:
    traffic, picked = Traffic("a", "b"), Counter[str]()
    for _ in range(10):
        request = Request()
        traffic.serve(request, 0.01, 0.1)
        picked[request.engine] += 1
    assert picked == {"a": 5, "b": 5}


def test_others_requests_count_and_own_ones_count_once() -> None:
    traffic = Traffic("a", "b")
    for _ in range(8):
        traffic.send()  # four each
    traffic.report("a", running=3, waiting=1)
    traffic.report("b", running=4, waiting=2)  # two are another frontend's
    assert [traffic.send() for _ in range(2)] == ["a", "a"]
    assert {traffic.send() for _ in range(2)} == {"a", "b"}


def test_report_without_our_last_requests_takes_nothing_away() -> None:
    traffic = Traffic("a", "b")
    del traffic.engines["b"]
    for _ in range(5):
        traffic.send()
    traffic.report("a", running=1)
    traffic.engines["b"] = engine_of("b")
    assert [traffic.send() for _ in range(4)] == ["b"] * 4


def test_what_a_lost_engine_reported_is_forgotten() -> None:
    traffic = Traffic("a", "b")
    traffic.report("a", running=9)
    prompt = range(640)
    traffic.holds("a", prompt)
    traffic.router.forget("a")
    traffic.router.left("late", "a")
    assert {traffic.send() for _ in range(2)} == {"a", "b"}
    assert traffic.router.index.hashes_of("a") == set()


def test_tokens_that_wait_for_other_frontends_count() -> None:
    traffic = Traffic("a", "b")
    traffic.report("a", running=1, unfinished=8000)
    traffic.report("b", running=2)
    assert traffic.pick() == "b"


def test_waiting_requests_of_others_count_as_average_ones() -> None:
    traffic = Traffic("a", "b")
    for number in range(6):
        traffic.serve(Request([number] * 2000), 1.0, 1.0)
    traffic.report("a", running=0, waiting=3)
    traffic.report("b", running=6)
    assert traffic.pick() == "b"


def test_own_long_prompts_count_at_once() -> None:
    traffic = Traffic("a", "b")
    long = traffic.send(Request(range(8000)))
    assert [traffic.send() for _ in range(4)] == [name for name in traffic.engines if name != long] * 4


def test_request_that_ends_without_a_token_leaves_no_charge() -> None:
    traffic = Traffic("a")
    request = Request(range(8000))
    traffic.send(request)
    load = traffic.router._loads["a"]
    assert (load.own, load.uncached_tokens) == (1, 8000)
    traffic.router.left(request.request_id, "a")
    traffic.router.left(request.request_id, "a")
    assert (load.own, load.uncached_tokens) == (0, 0)


def test_a_slow_engine_gets_fewer_requests() -> None:
    """One tenth of the speed, in prefill and in decode, as measured."""
    traffic = Traffic("fast", "slow")
    for name, factor in (("fast", 1), ("slow", 10)):
        for number in range(3):
            alone = Request([number] * 1000)
            others = {other: traffic.engines.pop(other) for other in list(traffic.engines) if other != name}
            traffic.serve(alone, 0.5 * factor, 1.0 * factor)
            traffic.engines |= others
    picked = Counter(traffic.send(Request([100 + number] * 1000)) for number in range(44))
    assert picked["fast"] / 13 <= picked["slow"] <= picked["fast"] / 8


def test_prefills_that_run_together_share_their_time() -> None:
    traffic = Traffic("a")
    requests = [Request([number] * 500) for number in range(4)]
    for request in requests:
        traffic.send(request)
    traffic.now = 1.0
    for request in requests:
        output = RequestOutput(
            request.request_id, 1, 0, [7], num_cached_tokens=100, progress=RequestProgress(0, 1.0)
        )
        traffic.router.begun(request, output)
    assert traffic.router._loads["a"].prefill_rate == 1600


def test_engine_without_rows_gets_nothing_while_another_has_some() -> None:
    traffic = Traffic("a", "b", rows=4)
    traffic.holds("a", prompt := range(1600))
    picked = [traffic.send(Request([*prompt, number])) for number in range(8)]
    assert Counter(picked) == {"a": 4, "b": 4}


def test_request_goes_to_an_engine_with_enough_blocks() -> None:
    traffic = Traffic("a", "b", num_blocks=100)
    traffic.report("a", running=1, used=95)
    traffic.report("b", running=2, used=10)
    assert traffic.pick(Request(range(16 * 4))) == "a"
    assert traffic.pick(Request(range(16 * 20))) == "b"


# --------------------------------------------------------------------------------------------------- the caches


def test_a_prompt_goes_to_the_engine_that_holds_most_of_it() -> None:
    traffic = Traffic("a", "b", "c")
    prompt = list(range(1600))
    traffic.holds("b", prompt[:800])
    traffic.holds("c", prompt[:1200])
    for _ in range(3):
        request = Request(prompt)
        traffic.serve(request, 0.1, 1.0, cached=1200)
        assert request.engine == "c"


def test_what_an_engine_evicts_counts_no_more() -> None:
    traffic = Traffic("a", "b")
    prompt = range(1600)
    traffic.holds("a", prompt)
    traffic.holds("b", prompt)
    hashing = traffic.engines["a"].block_hashing
    assert hashing is not None
    chain = PromptHashes(token_array(prompt)).known(hashing)
    traffic.router.cache_changed(traffic.engines["a"], CacheEvents(1, evicted=chain[10 * HASH_BYTES :]))
    assert traffic.pick(Request(prompt)) == "b"


def test_burst_with_a_new_prefix_stays_together_on_busy_engines() -> None:
    """Before the first of them has computed the prefix, and before any report."""
    traffic = Traffic("a", "b", "c", "d")
    for number in range(4):
        traffic.send(Request([number] * 1000))
    traffic.now = 10.0
    prefix = list(range(2000))
    picked = [traffic.send(Request([*prefix, number])) for number in range(16)]
    assert len(set(picked)) == 1
    assert len({traffic.send(Request([number] * 2000)) for number in range(100, 103)}) == 3


def test_a_burst_with_a_new_prefix_uses_engines_that_are_idle() -> None:
    traffic = Traffic("a", "b", "c", "d")
    prefix = list(range(2000))
    picked = [traffic.send(Request([*prefix, number])) for number in range(16)]
    assert picked[0] == picked[1]
    assert len(set(picked)) == 4


def test_the_share_of_busy_time_falls_when_nothing_waits() -> None:
    traffic = Traffic("a")
    request = Request()
    traffic.send(request)
    load = traffic.router._loads["a"]
    traffic.now = 100.0
    assert load.busy_share(traffic.now) > 0.99
    traffic.router.left(request.request_id, "a")
    traffic.now = 200.0
    assert load.busy_share(traffic.now) < 0.01


def test_a_prefix_that_all_requests_share_spreads() -> None:
    traffic = Traffic("a", "b", "c", "d")
    prefix = list(range(2000))
    traffic.holds("a", prefix)
    picked = Counter(traffic.send(Request([*prefix, number])) for number in range(400))
    assert max(picked.values()) <= 1.5 * min(picked.values())
    assert len(picked) == 4


def test_cold_prompts_fill_the_caches_evenly() -> None:
    traffic = Traffic("a", "b", "c")
    hot = range(8000, 9600)
    traffic.holds("a", hot)
    picked = []
    for number in range(9):
        cold = Request([number] * 1600)
        traffic.serve(cold, 0.1, 1.0)
        picked.append(cold.engine)
        traffic.serve(Request(hot), 0.001, 1.0, cached=1584)  # it does not count as a's turn
    assert Counter(picked) == {"a": 3, "b": 3, "c": 3}
    assert picked[:3] == picked[3:6]


def test_blocks_on_their_way_expire() -> None:
    traffic = Traffic("a", "b")
    prompt = range(1600)
    first = traffic.send(Request(prompt))
    traffic.router.left("r", first)
    traffic.now += 2 * 1600 / router_module.DEFAULT_PREFILL_RATE + router_module.PREDICTED_SECONDS + 0.1
    assert traffic.router._choices(list(traffic.engines.values()), Request(prompt))[0].num_cached == 0


def test_a_prompt_whose_tokens_are_scored_reads_no_cache() -> None:
    traffic = Traffic("a", "b")
    prompt = range(1600)
    traffic.holds("a", prompt)
    scored = SamplingParams(max_tokens=8, seed=0, prompt_logprobs=0)
    for _ in range(2):
        traffic.send(Request(prompt, scored))
    assert traffic.router._loads["b"].uncached_tokens == 1600


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17])
def test_a_token_is_always_left_to_compute(num_tokens: int) -> None:
    traffic = Traffic("a")
    prompt = range(num_tokens)
    traffic.holds("a", prompt)
    traffic.send(Request(prompt))
    assert traffic.router._loads["a"].uncached_tokens >= 1
