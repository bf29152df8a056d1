import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.engine.handover import hand_over
from kvasir.engine.handover.block_fetch import FetchLimits
from kvasir.engine.handover.hand_over import AVOID_TIMES, MAX_FETCHES, MIN_AVOID_SECONDS, MIN_TOKENS
from kvasir.engine.handover.messages import FetchEnded, PinReleased, PinWanted
from kvasir.request.hashing import split_chain
from runtime.engine.core_harness import FRONTEND, add_request
from runtime.engine.fake_executor import NAN, expected_output, next_token
from runtime.engine.handover.engines import HandingEngine, serve_until
from runtime.engine.handover.sides import PATIENCE

PROMPT = [1 + place % 900 for place in range(101)]
BLOCK_SIZE = 4
FULL_BLOCKS = 25


@pytest.fixture
def path() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="kv"))  # short: a socket's path has 107 characters at most
    yield f"ipc://{directory}/blocks"
    shutil.rmtree(directory)


@pytest.fixture
def new_engine() -> Iterator[Callable[..., HandingEngine]]:
    engines: list[HandingEngine] = []

    def make(address: str = "", **options: Any) -> HandingEngine:
        engines.append(HandingEngine(**{"num_blocks": 200} | options))
        engines[-1].start(address)
        return engines[-1]

    yield make
    for engine in engines:
        engine.exchange.close()


def warm(engine: HandingEngine, prompt: list[int] = PROMPT) -> None:
    """Compute a prompt, so that its blocks are in the prefix cache."""
    engine.harness.add(add_request("before", prompt, 1))
    engine.run()


def fetching(new_engine: Callable[..., HandingEngine], path: str) -> tuple[HandingEngine, HandingEngine]:
    giver, taker = new_engine(path), new_engine()
    warm(giver)
    taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    return giver, taker


def held(engine: HandingEngine) -> int:
    return engine.harness.blocks.held.num_blocks


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_fetched_blocks_are_not_computed(
    new_engine: Callable[..., HandingEngine], path: str, max_in_flight: int
) -> None:
    giver, taker = new_engine(path, max_in_flight=max_in_flight), new_engine(max_in_flight=max_in_flight)
    warm(giver)
    answer = taker.harness.add(add_request("r", PROMPT, 9, kv_source=giver.address))
    taker.run()
    assert not taker.harness.core.has_work
    assert serve_until(giver, taker) == FetchEnded(1, FULL_BLOCKS, "")
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 9)
    assert answer.num_cached_tokens[0] == FULL_BLOCKS * BLOCK_SIZE
    assert sum(row.num_new_tokens for step in taker.harness.executor.steps for row in step.scheduled) == 9
    assert held(taker) == 0


def test_a_resumed_request_fetches_its_output_too(new_engine: Callable[..., HandingEngine], path: str) -> None:
    giver, taker = new_engine(path), new_engine()
    begun = giver.harness.add(add_request("r", PROMPT, 60))
    while len(begun.token_ids) < 40:
        giver.step()
    output = begun.token_ids[:40]
    giver.harness.core.abort(FRONTEND, ["r"])
    answer = taker.harness.add(add_request("r", PROMPT, 60, output=output, attempt=1, kv_source=giver.address))
    taker.run()
    ended = serve_until(giver, taker)
    assert ended.num_blocks == (len(PROMPT) + 39) // BLOCK_SIZE
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 60)


def test_missing_blocks_are_computed(new_engine: Callable[..., HandingEngine], path: str) -> None:
    """The giver has the first half only."""
    giver, taker = new_engine(path), new_engine()
    warm(giver, PROMPT[:50])
    answer = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    assert serve_until(giver, taker).num_blocks == 12
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)
    assert answer.num_cached_tokens[0] == 48


def test_only_blocks_that_the_engine_lacks_are_fetched(new_engine: Callable[..., HandingEngine], path: str) -> None:
    giver, taker = new_engine(path), new_engine()
    warm(giver)
    warm(taker, PROMPT[:20])
    answer = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    assert serve_until(giver, taker).num_blocks == FULL_BLOCKS - 5
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)


@pytest.mark.parametrize(
    "options", [{"prompt_logprobs": 0}, {"kv_source": ""}, {"kv_source": "unchanged", "length": 60}]
)
def test_requests_that_gain_nothing_do_not_wait(
    new_engine: Callable[..., HandingEngine], path: str, options: dict[str, Any]
) -> None:
    giver, taker = new_engine(path), new_engine()
    prompt = PROMPT[: options.pop("length", None)]
    source = options.pop("kv_source", "unchanged").replace("unchanged", giver.address)
    answer = taker.harness.add(add_request("r", prompt, 3, kv_source=source, **options))
    taker.run()
    assert answer.token_ids == expected_output(prompt, 3)


@pytest.mark.parametrize("problem", ["gone", "foreign", "slow"])
def test_a_failed_fetch_is_computed(new_engine: Callable[..., HandingEngine], path: str, problem: str) -> None:
    giver = new_engine(path, kv_class="another" if problem == "foreign" else "class")
    warm(giver)
    limits = FetchLimits(first_seconds=0.2 if problem == "slow" else PATIENCE)
    taker = new_engine(limits=limits)
    if problem == "gone":
        giver.exchange.close()
    answer = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    ended = taker.handle()  # the events of the giver are not handled
    assert isinstance(ended, FetchEnded)
    assert ended.num_blocks == 0
    assert ended.problem
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)
    assert taker.hand_over.num_failed_fetches == 1
    assert held(taker) == 0


def test_other_requests_run_while_one_waits(new_engine: Callable[..., HandingEngine], path: str) -> None:
    giver, taker = new_engine(path), new_engine()
    warm(giver)
    waiting = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    other = taker.harness.add(add_request("s", [7, 8, 9], 20))
    taker.run()
    assert other.token_ids == expected_output([7, 8, 9], 20)
    assert waiting.token_ids == []
    serve_until(giver, taker)
    taker.run()
    assert waiting.token_ids == expected_output(PROMPT, 5)


def test_an_aborted_request_leaves_no_block_behind(new_engine: Callable[..., HandingEngine], path: str) -> None:
    giver, taker = fetching(new_engine, path)
    assert held(taker) == FULL_BLOCKS
    taker.harness.core.abort(FRONTEND, ["r"])
    serve_until(giver, taker)
    taker.run()
    assert held(taker) == 0
    answer = taker.harness.add(add_request("again", PROMPT, 5))
    taker.run()
    assert answer.num_cached_tokens[0] == FULL_BLOCKS * BLOCK_SIZE


def test_a_later_attempt_waits_for_the_fetch_of_the_earlier_one(
    new_engine: Callable[..., HandingEngine], path: str
) -> None:
    giver, taker = fetching(new_engine, path)
    answer = taker.harness.add(add_request("r", PROMPT, 5, attempt=1, kv_source=giver.address))
    taker.run()
    assert answer.token_ids == []
    serve_until(giver, taker)
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)
    assert taker.hand_over.num_fetched_blocks == FULL_BLOCKS
    assert held(taker) == 0


def test_a_request_waits_for_blocks_that_another_one_fetches(
    new_engine: Callable[..., HandingEngine], path: str
) -> None:
    giver, taker = new_engine(path), new_engine()
    warm(giver)
    for name in ("r", "s", "t"):
        source = "" if name == "t" else giver.address
        taker.harness.add(add_request(name, PROMPT, 5, kv_source=source))
    other = taker.harness.add(add_request("other", [9, *PROMPT], 5))
    taker.run()
    assert other.token_ids == expected_output([9, *PROMPT], 5)
    before = len(taker.harness.executor.steps)
    serve_until(giver, taker)
    taker.run()
    assert taker.hand_over.num_fetched_blocks == FULL_BLOCKS
    computed = [row.num_new_tokens for step in taker.harness.executor.steps[before:] for row in step.scheduled]
    assert sum(computed) == 3 * 5
    assert held(taker) == 0


def test_requests_that_wait_for_a_fetch_are_computed_if_it_fails(
    new_engine: Callable[..., HandingEngine], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "MIN_AVOID_SECONDS", PATIENCE)  # this machine may be slow
    giver, taker = new_engine(path, kv_class="another"), new_engine()
    answers = [
        taker.harness.add(add_request(name, PROMPT, 5, kv_source=source))
        for name, source in (("r", giver.address), ("s", giver.address), ("t", ""))
    ]
    taker.run()
    assert isinstance(taker.handle(), FetchEnded)
    taker.run()
    assert [answer.token_ids for answer in answers] == [expected_output(PROMPT, 5)] * 3
    assert taker.hand_over.num_failed_fetches == 1


@pytest.mark.parametrize(("waited", "avoided"), [(2.0, AVOID_TIMES * 2.0), (0.0, MIN_AVOID_SECONDS)])
def test_a_source_that_sent_nothing_is_not_asked_again_soon(
    new_engine: Callable[..., HandingEngine],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    waited: float,
    avoided: float,
) -> None:
    now = 1000.0
    giver, taker = new_engine(path, kv_class="another"), new_engine()
    monkeypatch.setattr(hand_over, "time", SimpleNamespace(monotonic=lambda: now))
    taker.harness.add(add_request("r", PROMPT, 2, kv_source=giver.address))
    taker.run()
    now += waited
    assert isinstance(taker.handle(), FetchEnded)
    taker.run()
    now += avoided - 0.1
    answer = taker.harness.add(add_request("s", [5, *PROMPT], 2, kv_source=giver.address))
    taker.run()
    assert answer.token_ids == expected_output([5, *PROMPT], 2)
    now += 0.2
    answer = taker.harness.add(add_request("t", [6, *PROMPT], 2, kv_source=giver.address))
    taker.run()
    assert answer.token_ids == []


def test_request_with_a_short_prefix_of_a_fetch_is_computed(
    new_engine: Callable[..., HandingEngine], path: str
) -> None:
    giver, taker = fetching(new_engine, path)
    short = [*PROMPT[: MIN_TOKENS - 1], *[7] * MIN_TOKENS]
    answer = taker.harness.add(add_request("short", short, 5))
    taker.run()
    assert answer.token_ids == expected_output(short, 5)
    serve_until(giver, taker)


def test_more_requests_than_fetches_wait_their_turn(new_engine: Callable[..., HandingEngine], path: str) -> None:
    giver, taker = new_engine(path, num_blocks=600), new_engine(num_blocks=600, max_num_seqs=32)
    prompts = [[first, *PROMPT] for first in range(1, MAX_FETCHES + 4)]
    for prompt in prompts:
        warm(giver, prompt)
    answers = [
        taker.harness.add(add_request(str(prompt[0]), prompt, 5, kv_source=giver.address)) for prompt in prompts
    ]
    for _ in prompts:
        taker.run()
        serve_until(giver, taker)
    taker.run()
    assert [answer.token_ids for answer in answers] == [expected_output(prompt, 5) for prompt in prompts]
    assert taker.hand_over.num_fetched_blocks == FULL_BLOCKS * len(prompts)


def test_a_request_without_room_waits_for_blocks_first(new_engine: Callable[..., HandingEngine], path: str) -> None:
    """A fetch never takes the blocks that the running request needs to go on."""
    giver, taker = new_engine(path), new_engine(num_blocks=32)
    warm(giver)
    running = taker.harness.add(add_request("s", [7, 8, 9], 60))
    taker.step()
    while taker.harness.blocks.pool.num_free > 24:
        taker.step()
    answer = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    assert running.token_ids == expected_output([7, 8, 9], 60)
    serve_until(giver, taker)
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)


def test_pinned_blocks_are_not_reused_until_they_are_sent(
    new_engine: Callable[..., HandingEngine], path: str
) -> None:
    """The giver computes other prompts while the blocks are being read."""
    giver, taker = new_engine(path, num_blocks=100), new_engine()
    warm(giver)
    answer = taker.harness.add(add_request("r", PROMPT, 5, kv_source=giver.address))
    taker.run()
    sent: list[tuple[int, list[int]]] = []
    giver.hand_over.open(giver.harness.scheduler, Recorded(sent))
    wanted = giver.handle()
    assert isinstance(wanted, PinWanted)
    for number in range(5):
        giver.harness.add(add_request(f"other {number}", [number + 1] * 250, 2))
        giver.run()
    [(session, block_ids)] = sent
    assert len(block_ids) == FULL_BLOCKS
    giver.exchange.pinned(session, block_ids)
    while not isinstance(giver.handle(), PinReleased):
        pass
    assert held(giver) == 0
    assert serve_until(giver, taker).num_blocks == FULL_BLOCKS
    taker.run()
    assert answer.token_ids == expected_output(PROMPT, 5)


class Recorded:
    """An exchange that keeps the calls."""

    def __init__(self, pinned: list[tuple[int, list[int]]]) -> None:
        self._pinned = pinned

    def pinned(self, session: int, block_ids: list[int]) -> None:
        self._pinned.append((session, block_ids))

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None:
        raise AssertionError("no request has a source")


def pinning(**options: Any) -> tuple[HandingEngine, list[tuple[int, list[int]]], list[bytes]]:
    """An engine without sockets, the pins that it answers, and the hashes of PROMPT."""
    engine = HandingEngine(**options)
    engine.exchange.close()
    sent: list[tuple[int, list[int]]] = []
    engine.hand_over.open(engine.harness.scheduler, Recorded(sent))
    prepared = engine.harness.core.ingest.prepare(FRONTEND, add_request("r", PROMPT, 2))
    engine.harness.budget.release(len(PROMPT))
    return engine, sent, split_chain(prepared.packed_hashes)  # type: ignore[union-attr]


def test_pins_take_a_share_of_the_cache_at_most() -> None:
    engine, sent, hashes = pinning(num_blocks=64)
    warm(engine)
    engine.hand_over.handle(PinWanted(1, hashes))
    engine.hand_over.handle(PinWanted(2, hashes))
    assert [len(block_ids) for _, block_ids in sent] == [FULL_BLOCKS, 32 - FULL_BLOCKS]
    engine.hand_over.handle(PinReleased(1))
    engine.hand_over.handle(PinReleased(2))
    engine.hand_over.handle(PinReleased(3))  # a session without blocks
    assert held(engine) == 0
    engine.harness.core.check_idle()


def test_blocks_of_a_step_in_flight_are_sent_after_it() -> None:
    """They are in the cache from the step that computes them on, and have no content before."""
    engine, sent, hashes = pinning(num_blocks=200, max_in_flight=2, budget=200)
    engine.harness.add(add_request("r", PROMPT, 4))
    engine.step()
    engine.hand_over.handle(PinWanted(1, hashes))
    assert engine.harness.executor.submitted
    assert sent == []
    engine.step()
    [(_, block_ids)] = sent
    assert len(block_ids) == FULL_BLOCKS
    assert b"\xff" * 8 not in bytes(engine.memory.read(block_ids))
    engine.hand_over.handle(PinReleased(1))
    engine.run()


def test_blocks_of_a_step_that_failed_are_not_sent() -> None:
    engine, sent, hashes = pinning(
        num_blocks=200,
        max_in_flight=2,
        budget=200,
        model=lambda tokens: NAN if len(tokens) > 100 else next_token(tokens),
    )
    engine.harness.add(add_request("r", PROMPT, 4))
    engine.step()
    engine.hand_over.handle(PinWanted(1, hashes))
    engine.step()
    assert sent == [(1, [])]
    engine.hand_over.handle(PinReleased(1))
    engine.run()
    assert held(engine) == 0


def test_a_fetch_begins_after_the_steps_in_flight() -> None:
    """A step in flight may still write a block that an abort has freed."""
    engine = HandingEngine(num_blocks=60, max_in_flight=2, budget=100)
    engine.exchange.close()
    begun: list[int] = []
    engine.hand_over.open(engine.harness.scheduler, FetchesAfter(engine, begun))
    engine.harness.add(add_request("s", [5] * 90, 50))
    engine.step()
    engine.harness.core.abort(FRONTEND, ["s"])
    answer = engine.harness.add(add_request("r", PROMPT, 5, kv_source="ipc:///nowhere"))
    assert len(engine.harness.executor.submitted) == 1
    engine.run()
    assert begun == [1]
    engine.hand_over.handle(FetchEnded(1, 0, "no engine"))
    engine.run()
    assert answer.token_ids == expected_output(PROMPT, 5)


class FetchesAfter:
    """An exchange that notes how many steps are computed when a fetch begins."""

    def __init__(self, engine: HandingEngine, begun: list[int]) -> None:
        self._engine = engine
        self._begun = begun

    def pinned(self, session: int, block_ids: list[int]) -> None:
        raise AssertionError("no engine asks for blocks")

    def fetch(self, number: int, source: str, hashes: list[bytes], block_ids: list[int]) -> None:
        self._begun.append(self._engine.harness.scheduler.num_computed)
