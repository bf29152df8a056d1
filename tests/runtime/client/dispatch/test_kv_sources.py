from collections.abc import Sequence

import msgspec
import pytest

from kvasir.client.dispatch.kv_source import FETCH_SHARE, MAX_FETCHES, MAX_WAIT_SECONDS, MIN_FETCH_TOKENS
from kvasir.client.dispatch.router import DEFAULT_PREFILL_RATE, EngineChoice
from kvasir.engine.handover.block_fetch import FetchLimits
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir.link.protocol import RequestOutput
from kvasir.request.params import SamplingParams
from runtime.client.dispatch.test_router import PARAMS, Request, Traffic

PROMPT = range(1600)
STEP_TOKENS = 2048


class Fetching(Traffic):
    """Engines that can hand over."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        for name in names:
            self.announce(name, numerics="n", kv_address=f"ipc:///kv/{name}", max_num_batched_tokens=STEP_TOKENS)
            self.report(name, running=0)

    def announce(self, name: str, **fields: object) -> None:
        capacity = self.engines[name].capacity
        assert capacity is not None
        self.engines[name].capacity = msgspec.structs.replace(capacity, **fields)

    def choose(self, request: Request, *names: str) -> EngineChoice:
        engines = [self.engines[name] for name in names or self.engines]
        choice = self.router.pick(engines, request, self.engines.values())
        assert choice is not None
        return choice

    def source(self, name: str, prompt: Sequence[int] = PROMPT, params: SamplingParams = PARAMS) -> str:
        return self.choose(Request(prompt, params), name).kv_source.removeprefix("ipc:///kv/")

    def send_to(self, name: str, request: Request) -> None:
        choice = self.choose(request, name)
        request.engine = name
        self.router.sent(request, choice, choice.kv_source)


def test_the_engine_that_holds_the_prefix_is_named() -> None:
    traffic = Fetching("a", "b", "c")
    traffic.holds("a", PROMPT)
    assert traffic.source("b") == "a"
    assert traffic.source("a") == ""


def test_a_cold_prompt_has_no_source() -> None:
    assert Fetching("a", "b").source("b") == ""


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(
    "fields", [{"numerics": "other"}, {"numerics": ""}, {"kv_address": ""}, {"block_size": 32}]
)
def test_engines_that_cannot_exchange_blocks_do_not(name: str, fields: dict[str, object]) -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.announce(name, **fields)
    assert traffic.source("b") == ""


@pytest.mark.parametrize("state", [EngineState.LOST, EngineState.WARMING, EngineState.DRAINING])
def test_an_engine_that_does_not_serve_is_not_named(state: EngineState) -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.engines["a"].state = state
    assert traffic.source("b") == ""


def test_an_engine_that_is_lost_is_not_named() -> None:
    traffic = Fetching("a", "b", "c")
    traffic.holds("a", PROMPT)
    traffic.send_to("b", Request(PROMPT))
    del traffic.engines["a"]
    traffic.router.forget("a")
    assert traffic.source("c") == ""
    assert not traffic.router._sources._fetches
    assert not traffic.router._sources._source_of


def test_a_request_whose_prompt_is_scored_fetches_nothing() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    scored = SamplingParams(max_tokens=8, seed=0, prompt_logprobs=0)
    assert traffic.source("b", params=scored) == ""


@pytest.mark.parametrize(
    ("held", "own", "expected"), [(272, 0, ""), (320, 0, "a"), (960, 736, ""), (960, 640, "a")]
)
def test_a_short_gain_is_computed(held: int, own: int, expected: str) -> None:
    """The fixed costs are those of MIN_FETCH_TOKENS tokens, and the others those of FETCH_SHARE of a token."""
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT[:held])
    if own:
        traffic.holds("b", PROMPT[:own])
    assert traffic.source("b") == expected
    assert ((held - own) * (1 - FETCH_SHARE) > MIN_FETCH_TOKENS) == bool(expected)


def test_blocks_that_are_only_on_their_way_are_not_fetched() -> None:
    traffic = Fetching("a", "b")
    traffic.send_to("a", Request(PROMPT))
    assert traffic.source("b") == ""


def test_the_least_loaded_source_is_named() -> None:
    traffic = Fetching("a", "b", "c", "d")
    for name in ("a", "c", "d"):
        traffic.holds(name, PROMPT)
    traffic.report("a", running=1, unfinished=400)
    traffic.report("d", running=1, unfinished=200)
    assert traffic.source("b") == "c"
    traffic.report("c", running=1, unfinished=300)
    assert traffic.source("b") == "d"


def test_the_longer_prefix_is_worth_a_wait() -> None:
    traffic = Fetching("a", "b", "c")
    traffic.holds("a", PROMPT)
    traffic.holds("c", PROMPT[:800])
    traffic.report("a", running=1, unfinished=400)
    assert traffic.source("b") == "a"
    traffic.report("a", running=1, unfinished=1000)
    assert traffic.source("b") == "c"


def test_a_source_in_a_long_step_is_not_waited_for() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.report("a", running=1, unfinished=20_000)
    assert traffic.source("b") == ""
    assert traffic.source("b", PROMPT[:320]) == ""
    traffic.announce("a", max_num_batched_tokens=512)  # it sends after the present step
    assert traffic.source("b") == "a"


def test_source_that_begins_after_the_time_limit_is_not_named() -> None:
    """Even if the engine is as busy, so that it would lose nothing by waiting."""
    assert FetchLimits().first_seconds > MAX_WAIT_SECONDS
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.announce("a", max_num_batched_tokens=10**6)
    for seconds, expected in ((MAX_WAIT_SECONDS - 0.1, "a"), (MAX_WAIT_SECONDS + 0.1, "")):
        tokens = int(seconds * DEFAULT_PREFILL_RATE) - MIN_FETCH_TOKENS
        traffic.report("a", running=1, unfinished=tokens)
        traffic.report("b", running=1, unfinished=2 * tokens)
        assert traffic.source("b") == expected


def test_fetch_from_the_last_engine_is_not_charged_to_another() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    request = Request(PROMPT)
    choice = traffic.choose(request, "b")
    assert choice.kv_source == "ipc:///kv/a"
    traffic.router.sent(request, choice, "ipc:///kv/last")
    assert not traffic.router._sources._fetches


def test_fetches_are_spread_over_the_sources() -> None:
    traffic = Fetching("a", "b", "c")
    prompts = [[number, *PROMPT] for number in range(2 * MAX_FETCHES + 1)]
    traffic.holds("a", PROMPT)
    traffic.holds("c", PROMPT)
    for prompt in prompts:
        traffic.holds("a", prompt)
        traffic.holds("c", prompt)
    picked = []
    for prompt in prompts:
        picked.append(traffic.source("b", prompt))
        traffic.send_to("b", Request(prompt))
    assert sorted(picked) == ["", *"a" * MAX_FETCHES, *"c" * MAX_FETCHES]
    assert picked[0] != picked[1]


@pytest.mark.parametrize("end", ["begun", "left"])
def test_a_fetch_counts_until_the_first_output_or_the_end(end: str) -> None:
    traffic = Fetching("a", "b")
    requests = [Request([number, *PROMPT]) for number in range(MAX_FETCHES + 1)]
    for request in requests:
        traffic.holds("a", request.prompt)
    for request in requests:
        traffic.send_to("b", request)
    traffic.holds("a", [99, *PROMPT])
    traffic.router.left(requests[-1].request_id, "b")  # it has no source
    assert traffic.source("b", [99, *PROMPT]) == ""
    if end == "begun":
        traffic.router.begun(requests[0], RequestOutput(requests[0].request_id, 1, 0, [7]))
    else:
        traffic.router.left(requests[0].request_id, "b")
    assert traffic.source("b", [99, *PROMPT]) == "a"


def test_a_fetched_token_is_charged_as_a_part_of_one() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.send_to("b", Request([*PROMPT, *range(100)]))
    assert traffic.router._loads["b"].uncached_tokens == 100 + int(FETCH_SHARE * len(PROMPT))


def test_an_engine_that_can_fetch_is_picked_sooner() -> None:
    """The load of the engine that has the prefix costs more than the fetch, and less than the prefill."""
    for address, expected in (("ipc:///kv/b", "b"), ("", "a")):
        traffic = Fetching("a", "b")
        traffic.announce("b", kv_address=address)
        traffic.holds("a", PROMPT)
        traffic.report("a", running=16)
        assert traffic.pick(Request(PROMPT)) == expected


def test_engines_of_unknown_numerics_exchange_nothing() -> None:
    traffic = Fetching("a", "b")
    for name in ("a", "b"):
        traffic.announce(name, numerics="")
    traffic.holds("a", PROMPT)
    assert traffic.source("b") == ""


def test_fetch_may_wait_while_its_engine_computes_other_requests() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    traffic.report("a", running=1, unfinished=1500)
    assert traffic.source("b") == ""
    traffic.report("b", running=1, unfinished=1500)
    assert traffic.source("b") == "a"


def test_a_source_counts_by_what_it_has_reported() -> None:
    traffic = Fetching("a", "b", "c")
    traffic.announce("a", max_num_batched_tokens=16)
    traffic.holds("c", PROMPT[:800])
    traffic.send_to("a", Request(PROMPT))
    assert traffic.source("b") == "c"


def test_time_to_the_first_token_includes_the_wait_for_a_source() -> None:
    traffic = Fetching("a", "b")
    traffic.holds("a", PROMPT)
    choice = traffic.choose(Request([*PROMPT, 1]), "b")
    tokens = MIN_FETCH_TOKENS + FETCH_SHARE * len(PROMPT) + 1
    assert choice.prefill_seconds == pytest.approx(tokens / DEFAULT_PREFILL_RATE)
