"""A random run: an engine over the fake executor, the events in its life, and the checks of its books and answers.

The fake executor fails on blocks that are shared wrongly and returns the content of its fake cache. An output that
equals the one without cache and neighbours therefore shows that every block had the right content.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.health.black_box import BlackBox
from kvasir.engine.scheduling.rations import StageRation
from kvasir.engine.scheduling.step_results import StepRows
from kvasir.link.protocol import AddRequest, Call, FinishReason, RefusalKind
from kvasir.request.tokens import packed
from runtime.engine.core_harness import FRONTEND, CoreHarness, add_request
from runtime.engine.fake_executor import EOS, VOCAB_SIZE, expected_output, next_token
from runtime.engine.fake_guides import FakeGrammars, FakeGuide, constraint, guided_output
from runtime.engine.gates import ReadyGate
from runtime.engine.scheduling.random_events import (
    AbortOf,
    Again,
    AgainOf,
    Arrival,
    Event,
    Machine,
    ResetCache,
    Steps,
    WakeOf,
)
from runtime.link_messages import output_of, prompt_of


def guesses(most: int, model: Callable[[Sequence[int]], int], token_ids: Sequence[int]) -> list[int]:
    """Return up to `most` next tokens; from a place on, which changes all the time, they are wrong."""
    tokens = list(token_ids)
    number = next_token(tokens)
    for place in range(number % (most + 1)):
        tokens.append(model(tokens) if place < number // 7 % (most + 2) else 999)
    return tokens[len(token_ids) :]


def grammar_of(request: AddRequest) -> str:
    if request.constraint is None or request.constraint.grammar is None:
        return ""
    return request.constraint.grammar.text


class LoneStepCheck(BlackBox):
    """Sees the steps in flight before the last of them is computed."""

    def note(self, steps: Iterable[StepRows]) -> None:
        requests = [request for rows in steps for request, _ in rows]
        assert len(requests) == 1 or not any(request.is_suspect for request in requests)


@dataclass
class Run:
    """A harness with the requests it was given; checks the scheduler's books after every step."""

    machine: Machine
    engine: CoreHarness = field(init=False)
    requests: dict[str, AddRequest] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    gate: ReadyGate = field(default_factory=ReadyGate)
    grammars: FakeGrammars = field(init=False)

    def __post_init__(self) -> None:
        options = dict(self.machine)
        stages, drafts = options.pop("stages"), options.pop("drafts")
        rations = [StageRation(stages, options["max_num_seqs"])] if stages > 1 else []
        # An engine that waits for each token before it computes the next one can be a pipeline.
        is_pipeline = 0 in (options["lookahead"], options["max_in_flight"] - 1)
        self.engine = CoreHarness(
            gates=[self.gate],
            rations=rations,
            is_pipeline=is_pipeline,
            grammars=GrammarGate(self._new_grammars, lambda name: self.engine.core.wake(name)),
            **options,
        )
        self.engine.core.black_box = LoneStepCheck("")
        if drafts:
            self.engine.drafter.guess = partial(guesses, drafts, self.machine["model"])
        self.longest = self.engine.max_model_len
        steps, lookahead = self.machine["max_in_flight"], self.machine["lookahead"]
        self.most_pending = steps - 1 if lookahead is None else min(steps - 1, lookahead + 1)

    def _new_grammars(self, ready: Callable[[str], None]) -> FakeGrammars:
        self.grammars = FakeGrammars(ready)
        return self.grammars

    def happen(self, event: Event) -> None:
        match event:
            case Arrival():
                self.arrive(event)
            case Steps(count):
                for _ in range(count):
                    self.step()
            case AbortOf(index, within_step):
                self.abort(index, within_step)
            case AgainOf(index, how, within_step):
                self.add_again(index, how, within_step)
            case ResetCache():
                self.reset_cache()
            case WakeOf(index, ready):
                self.wake(index, ready)

    def arrive(self, arrival: Arrival) -> None:
        name = f"r{len(self.requests)}"
        prompt = arrival.prompt(len(self.requests))[: self.longest - 1] or [7]
        emitted = self.expected(prompt, arrival.max_tokens, arrival.grammar)[: arrival.emitted]
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
            alone=arrival.alone,
            constraint=constraint(arrival.grammar) if arrival.grammar else None,
        )
        self.grammars.is_slow = not arrival.compiled
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

    def add_again(self, index: int, how: Again, within_step: bool) -> None:
        name = f"r{index % max(1, len(self.requests))}"
        if name not in self.engine.scheduler.requests:
            return
        output = self.engine.core.execute() if within_step else None
        message = self.requests[name]
        if how in (Again.NEXT, Again.REFUSED_NEXT):
            emitted = packed(self.engine.answers[name].token_ids)
            message = msgspec.structs.replace(message, attempt=message.attempt + 1, output_tokens=emitted)
        if how in (Again.REFUSED_NEXT, Again.REFUSED_SAME):
            message = msgspec.structs.replace(message, prompt_tokens=packed([VOCAB_SIZE]), block_hashes=b"")
        if how is Again.NEXT:
            self.requests[name] = message
            self.engine.add(message)
        elif how is Again.REFUSED_NEXT:
            self.refused.add(name)
            self.engine.add(message)
            assert name not in self.engine.scheduler.requests
        else:
            self.engine.core.add(FRONTEND, message)
        self.engine.take(self.engine.core.update(output))
        self.check_books()

    def reset_cache(self) -> None:
        pool = self.engine.blocks.pool
        cached = 0 if pool.cache is None else len(pool.cache)
        result = self.engine.core.call(Call(1, "reset_prefix_cache"))
        assert bool(result.error) == (pool.cache is None or pool.num_used > 0)
        if pool.cache is not None:
            assert len(pool.cache) == (cached if result.error else 0)
        self.check_books()

    def wake(self, index: int, ready: bool) -> None:
        name = f"r{index % max(1, len(self.requests))}"
        if ready:
            self.gate.unready.discard(name)
            self.grammars.compile(name)
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
            self.wake(int(blocked[-1][1:]), ready=True)
        assert not self.engine.core.has_requests
        assert self.engine.budget.held == 0
        assert not self.grammars.compiling
        assert not self.grammars.outcomes

    def expected(self, prompt: list[int], max_tokens: int, grammar: str = "") -> list[int]:
        if grammar:
            return guided_output(
                prompt, min(max_tokens, self.longest - len(prompt)), grammar, self.machine["model"]
            )
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
        waiting = len(scheduler.waiting) + scheduler.num_suspects
        assert len(scheduler.running) + waiting + len(scheduler.blocked) == len(scheduler.requests)
        compiling = {ticket.rpartition("#")[0] for ticket in self.grammars.compiling}
        assert set(scheduler.blocked) <= self.gate.unready | compiling
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
            expected = self.expected(prompt_of(request), request.params.max_tokens, grammar_of(request))
            if name in self.aborted:
                assert answer.finish_reason is None
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            if name in self.refused:
                assert answer.refusal is RefusalKind.INVALID
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            if answer.error:
                assert name in self.engine.executor.failing
                assert answer.finish_reason is FinishReason.ERROR
                assert answer.token_ids == expected[: len(answer.token_ids)]
                continue
            assert answer.token_ids == expected
            complete = grammar_of(request) and FakeGuide(grammar_of(request), expected).is_complete
            # Without its guide a resumed request is not known to be complete, only to be full.
            is_full = len(output_of(request)) == min(
                request.params.max_tokens, self.longest - len(prompt_of(request))
            )
            stopped = (complete and not is_full) or expected[-1] == EOS
            assert answer.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            self.check_hits(request, answer.num_cached_tokens)

    def check_hits(self, request: AddRequest, told: list[int | None]) -> None:
        if not request.output_tokens:
            first, *rest = told
            assert first is not None
            assert first % self.machine["block_size"] == 0
            assert first < len(prompt_of(request))
            assert not first or (self.machine["prefix_caching"] and request.params.prompt_logprobs is None)
            assert set(rest) <= {None}
