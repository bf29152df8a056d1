"""The scheduler under random arrivals, lengths, shared prefixes, priorities, aborts and pool sizes.

The fake executor fails on blocks that are shared wrongly and returns the content of its fake cache. An output that
equals the one without cache and neighbours therefore shows that every block had the right content.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.rations import StageRation
from kvasir.link.protocol import AddRequest, FinishReason
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import EOS, expected_output, next_token
from runtime.engine.gates import ReadyGate
from runtime.wire import prompt_of

LONGEST_PREFIX = 40
Machine = dict[str, Any]  # the arguments of a CoreHarness; `stages` of a StageRation, most `drafts`
Range = tuple[int, int]


def ends_at_times(token_ids: Sequence[int]) -> int:
    """A model that returns EOS after some contexts, so that requests end unexpectedly."""
    token_id = next_token(token_ids)
    return EOS if token_id % 16 == 0 else token_id


def guesses(most: int, model: Callable[[Sequence[int]], int], token_ids: Sequence[int]) -> list[int]:
    """Return up to `most` next tokens; from a place on, which changes all the time, they are wrong."""
    tokens = list(token_ids)
    number = next_token(tokens)
    for place in range(number % (most + 1)):
        tokens.append(model(tokens) if place < number // 7 % (most + 2) else 999)
    return tokens[len(token_ids) :]


def machines(
    num_blocks: Range = (2, 30),
    block_size: Range = (1, 5),
    rows: Range = (1, 6),
    models: Sequence[Callable[[Sequence[int]], int]] = (next_token, ends_at_times),
) -> st.SearchStrategy[Machine]:
    """Engines with these ranges of sizes and every combination of features. `num_blocks` is per KV group."""
    window = st.integers(1, 24)
    several_groups = st.tuples(st.none(), window) | st.tuples(window) | st.tuples(st.none(), window, window)
    sizes: st.SearchStrategy[Machine] = st.fixed_dictionaries(
        {
            "num_blocks": st.integers(*num_blocks),
            "block_size": st.integers(*block_size),
            "max_num_seqs": st.integers(*rows),
            "budget": st.integers(rows[1], 40),
            "prefix_caching": st.booleans(),
            "by_priority": st.booleans(),
            "long_prefill_token_threshold": st.none() | st.integers(1, 12),
            "max_in_flight": st.integers(1, 4),
            "lookahead": st.sampled_from([None, None, 0, 1]),
            "stages": st.sampled_from([1, 1, 2, 3]),
            "drafts": st.sampled_from([0, 0, 1, 4]),
            "model": st.sampled_from(models),
            "windows": st.just((None,)) | several_groups,
        }
    )
    return sizes.map(lambda machine: machine | {"num_blocks": machine["num_blocks"] * len(machine["windows"])})


@dataclass(frozen=True)
class Arrival:
    family: int
    """Prompts of one family begin with the same tokens."""
    shared: int
    own: int
    max_tokens: int
    priority: int
    emitted: int
    """Tokens that another engine emitted before."""
    reads_cache: bool
    salt: str
    hashed: bool
    fails_after: int | None = None
    """Output tokens after which the worker cannot prepare the sampling; None: it always can."""
    ready: bool = True
    """False: a gate skips it until a wake-up makes it ready."""

    def prompt(self, own_salt: int) -> list[int]:
        common = [1 + (self.family * 300 + i) % 900 for i in range(LONGEST_PREFIX)]
        return common[: self.shared] + [1 + (own_salt * 131 + i * 7) % 900 for i in range(self.own)]


def arrivals_of(
    shared: Range, own: Range, max_tokens: Range, fails_after: Sequence[int | None] = (None,)
) -> st.SearchStrategy[Arrival]:
    """Requests with these ranges of lengths."""
    return st.builds(
        Arrival,
        family=st.integers(0, 2),
        shared=st.integers(*shared),
        own=st.integers(*own),
        max_tokens=st.integers(*max_tokens),
        priority=st.integers(-2, 2),
        emitted=st.sampled_from([0, 0, 0, 5]),
        reads_cache=st.sampled_from([True, True, True, False]),
        salt=st.sampled_from(["", "", "tenant"]),
        hashed=st.booleans(),
        fails_after=st.sampled_from(fails_after),
        ready=st.sampled_from([True, True, False]),
    )


arrivals = arrivals_of((0, LONGEST_PREFIX), (0, 20), (1, 24), (None, None, None, 0, 1, 6))


@dataclass(frozen=True)
class AbortOf:
    index: int
    within_step: bool


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass(frozen=True)
class WakeOf:
    index: int
    ready: bool
    """False: it is woken too early."""


Event = Arrival | AbortOf | Steps | WakeOf

wakes = st.builds(WakeOf, st.integers(0, 30), st.sampled_from([True, True, False]))
aborts = st.builds(AbortOf, st.integers(0, 30), st.booleans())
steps = st.builds(Steps, st.integers(1, 6))
events = st.lists(st.one_of(arrivals, arrivals, aborts, steps, wakes), min_size=1, max_size=40)

# Long outputs in small blocks outgrow the reserve for them: most of these runs preempt.
tight_machines = machines(num_blocks=(40, 60), block_size=(1, 2), rows=(4, 6), models=(next_token,))
crowds = st.lists(arrivals_of((2, 14), (0, 6), (10, 40), (None, None, None, 0, 1, 20)), min_size=4, max_size=12)


@dataclass
class Run:
    """A harness with the requests it was given; checks the scheduler's books after every step."""

    machine: Machine
    engine: CoreHarness = field(init=False)
    requests: dict[str, AddRequest] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    gate: ReadyGate = field(default_factory=ReadyGate)

    def __post_init__(self) -> None:
        options = dict(self.machine)
        stages, drafts = options.pop("stages"), options.pop("drafts")
        rations = [StageRation(stages, options["max_num_seqs"])] if stages > 1 else []
        self.engine = CoreHarness(gates=[self.gate], rations=rations, **options)
        if drafts:
            self.engine.executor.drafter = partial(guesses, drafts, self.machine["model"])
        self.longest = self.engine.max_model_len
        steps, lookahead = self.machine["max_in_flight"], self.machine["lookahead"]
        self.most_pending = steps - 1 if lookahead is None else min(steps - 1, lookahead + 1)

    def happen(self, event: Event) -> None:
        match event:
            case Arrival():
                self.arrive(event)
            case Steps(count):
                for _ in range(count):
                    self.step()
            case AbortOf(index, within_step):
                self.abort(index, within_step)
            case WakeOf(index, ready):
                self.wake(index, ready)

    def arrive(self, arrival: Arrival) -> None:
        name = f"r{len(self.requests)}"
        prompt = arrival.prompt(len(self.requests))[: self.longest - 1] or [7]
        emitted = self.expected(prompt, arrival.max_tokens)[: arrival.emitted]
        if arrival.fails_after is not None:
            self.engine.executor.failing[name] = len(prompt) + arrival.fails_after
        if not arrival.ready:
            self.gate.unready.add(name)
        self.requests[name] = add_request(
            name,
            prompt,
            arrival.max_tokens,
            output=emitted,
            priority=arrival.priority if self.machine["by_priority"] else 0,
            prompt_logprobs=None if arrival.reads_cache else 0,
            cache_salt=arrival.salt,
            hashed_for=self.machine["block_size"] if arrival.hashed else None,
        )
        self.engine.add(self.requests[name])

    def abort(self, index: int, within_step: bool) -> None:
        if not self.requests:
            return
        name = f"r{index % len(self.requests)}"
        output = self.engine.core.execute() if within_step else None
        if name in self.engine.scheduler.requests:
            self.aborted.add(name)
        self.engine.core.abort(FRONTEND, [name])
        self.engine.take(self.engine.core.update(output))
        self.check_books()

    def wake(self, index: int, ready: bool) -> None:
        name = f"r{index % max(1, len(self.requests))}"
        if ready:
            self.gate.unready.discard(name)
        self.engine.core.wake(name)

    def step(self) -> None:
        self.engine.step()
        self.check_books()

    def finish(self) -> None:
        """Everybody ends, within as many steps as computing each request alone, again and again, would take."""
        limit = 50 + sum(
            10 * (len(prompt_of(request)) + request.params.max_tokens) for request in self.requests.values()
        )
        for _ in range(limit):
            if self.engine.core.has_work:
                self.step()
                continue
            self.engine.core.check_idle()
            if not self.engine.core.has_requests:
                break
            blocked = list(self.engine.scheduler.blocked)
            assert set(blocked) == set(self.engine.scheduler.requests), "only blocked requests may stop the engine"
            self.gate.unready.remove(blocked[-1])
            self.engine.core.wake(blocked[-1])
        assert not self.engine.core.has_requests

    def expected(self, prompt: list[int], max_tokens: int) -> list[int]:
        whole = expected_output(prompt, min(max_tokens, self.longest - len(prompt)), self.machine["model"])
        return whole[: whole.index(EOS) + 1] if EOS in whole else whole

    # --------------------------------------------------------------------------------------------------- checks

    def check_books(self) -> None:
        """The users of blocks, the free blocks and the cached ones agree with the requests' block tables."""
        scheduler, pool = self.engine.scheduler, self.engine.blocks.pool
        users = [0] * (pool.num_blocks + 1)
        for request in scheduler.running:
            for table in request.block_tables:
                assert not any(table.ids[: table.first])
                for block_id in table.blocks:
                    users[block_id] += 1
        assert users == [pool.users(block_id) for block_id in range(pool.num_blocks + 1)]
        assert pool.num_used == sum(1 for count in users if count)
        assert users[0] == 0
        if pool.cache is not None:
            pool.cache.check()
        for order in (scheduler.running, scheduler.waiting):
            ranks = [request.rank for request in order]
            assert ranks == sorted(set(ranks))
        assert len(scheduler.running) + len(scheduler.waiting) + len(scheduler.blocked) == len(scheduler.requests)
        assert set(scheduler.blocked) <= self.gate.unready
        assert self.gate.holders == {request.request_id for request in scheduler.running}
        for request in scheduler.requests.values():
            self.check_request(request)

    def check_request(self, request: EngineRequest) -> None:
        block_size = self.machine["block_size"]
        assert 0 <= request.num_pending <= (request.num_drafts + 1 if request.num_drafts else self.most_pending)
        assert request.num_drafts <= self.machine["drafts"]
        assert 0 <= request.num_computed_tokens <= request.num_tokens + request.num_pending
        assert all(len(table.ids) * block_size >= request.num_slots for table in request.block_tables)
        assert request.num_slots >= request.num_computed_tokens
        for window, table in zip(self.machine["windows"], request.block_tables, strict=False):  # waiting: none
            first = request.num_computed_tokens - request.num_drafts  # all drafts may be rejected
            needed = 0 if window is None else max(0, first - window + 1) // block_size
            assert table.first <= needed
            assert all(table.ids[needed:])
            chunk = self.machine["budget"]
            assert window is None or len(table.blocks) <= (window - 1 + chunk + block_size - 2) // block_size + 1
        assert request.num_known_blocks * block_size <= request.num_computed_tokens

    def check_answers(self) -> None:
        for name, request in self.requests.items():
            answer = self.engine.answers[name]
            expected = self.expected(prompt_of(request), request.params.max_tokens)
            if name in self.aborted:
                assert answer.finish_reason is None
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            if answer.error:
                assert name in self.engine.executor.failing
                assert answer.finish_reason is FinishReason.ERROR
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            assert answer.token_ids == expected
            assert answer.finish_reason is (FinishReason.STOP if expected[-1] == EOS else FinishReason.LENGTH)
            self.check_hits(request, answer.num_cached_tokens)

    def check_hits(self, request: AddRequest, told: list[int | None]) -> None:
        if not request.output_tokens:
            first, *rest = told
            assert first is not None
            assert first % self.machine["block_size"] == 0
            assert first < len(prompt_of(request))
            assert not first or (self.machine["prefix_caching"] and request.params.prompt_logprobs is None)
            assert set(rest) <= {None}


@settings(max_examples=400, deadline=None)
@given(machine=machines(), happenings=events)
def test_every_request_ends_as_if_it_were_alone_and_nothing_leaks(
    machine: Machine, happenings: list[Event]
) -> None:
    run = Run(machine)
    for event in happenings:
        run.happen(event)
    run.finish()
    run.check_answers()


@settings(max_examples=200, deadline=None)
@given(
    machine=tight_machines, crowd=crowds, happenings=st.lists(st.one_of(aborts, steps, steps, wakes), max_size=24)
)
def test_preempted_requests_end_as_if_they_were_alone_and_nothing_leaks(
    machine: Machine, crowd: list[Arrival], happenings: list[Event]
) -> None:
    run = Run(machine)
    for arrival in crowd:
        run.happen(arrival)
    for event in happenings:
        run.happen(event)
    run.finish()
    run.check_answers()


@settings(max_examples=100, deadline=None)
@given(machine=machines(), crowd=st.lists(arrivals, min_size=2, max_size=12))
def test_of_equal_priorities_nobody_is_admitted_before_who_came_first(
    machine: Machine, crowd: list[Arrival]
) -> None:
    """No starvation: a waiting request is not overtaken, so its turn comes."""
    run = Run(machine | {"by_priority": False})
    for arrival in crowd:
        run.arrive(replace(arrival, ready=True))
        run.step()
        arrived = [int(name[1:]) for name in run.engine.scheduler.requests]
        served = [int(request.request_id[1:]) for request in run.engine.scheduler.running]
        assert served == sorted(arrived)[: len(served)]
    run.finish()
    run.check_answers()


@settings(max_examples=100, deadline=None)
@given(machine=machines(), crowd=st.lists(arrivals, min_size=1, max_size=10))
def test_every_running_request_goes_on_in_every_step(machine: Machine, crowd: list[Arrival]) -> None:
    """Also next to a long prompt that arrives later and goes before it."""
    run = Run(machine | {"max_in_flight": 1, "stages": 1, "num_blocks": 400})
    while crowd or run.engine.core.has_work:
        if crowd:
            run.arrive(replace(crowd.pop(), ready=True))
        running = {request.request_id for request in run.engine.scheduler.running}
        run.step()
        if running:
            assert running <= {row.request_id for row in run.engine.executor.steps[-1].scheduled}
    run.check_answers()
