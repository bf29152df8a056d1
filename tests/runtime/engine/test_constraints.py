import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvasir.engine.engine_request import GrammarTooComplex, Guide, GuideError
from kvasir.engine.grammar.grammar_gate import GrammarGate, GuideSource
from kvasir.engine.grammar.output_guide import OutputGuide
from kvasir.engine.inbox import Inbox
from kvasir.engine.scheduling.step_results import FORCING_BUDGET, FORCING_COST, MAX_FORCED_TOKENS
from kvasir.link.engine_end.engine_link import FrontendLost, LinkEvent, Received
from kvasir.link.protocol import SUSPECT_TOKENS, Abort, FinishReason, RefusalKind
from kvasir.request.constraint import OutputConstraint
from runtime.engine.core_harness import FRONTEND, Answer, CoreHarness, add_request
from runtime.engine.fake_executor import EOS, VOCAB_SIZE, expected_output
from runtime.engine.fake_guides import REFUSED, FakeGrammars, FakeGuide, constraint, guided_output

PROMPT = [5, 6, 7]
LONG = next(text for text in map(str, range(100)) if len(guided_output(PROMPT, 8, text)) == 8)
"""A grammar whose output ends at the limit of its tokens."""


class Tokens:
    """A guide that allows one token after the other, and then EOS only."""

    is_free = False

    def __init__(self, tokens: Sequence[int], *, forces: bool = False) -> None:
        """`forces`: without a mask."""
        self.tokens = list(tokens)
        self.count = 0
        self.forces = forces
        self.tokenized = 0
        """Calls of `forced_tokens`."""

    def forced_tokens(self) -> Sequence[int]:
        self.tokenized += 1
        return self.tokens[self.count :] if self.forces else ()

    @property
    def is_complete(self) -> bool:
        return self.count >= len(self.tokens)

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        mask[:] = 0
        token_id = EOS if self.is_complete else self.tokens[self.count]
        mask[token_id // 32] = 1 << token_id % 32

    def accept(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if token_id != (EOS if self.is_complete else self.tokens[self.count]):
                raise GuideError(f"token {token_id} is not allowed")
            self.count += 1

    def copy(self) -> "Tokens":
        return copy.copy(self)


class OneGuide:
    """Implements GuideSource: every request gets this guide."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def begin(self, request_id: str, constraint: OutputConstraint, output_token_ids: Sequence[int]) -> None:
        pass

    def outcome(self, request_id: str) -> Guide:
        return self._guide

    def forget(self, request_id: str) -> None:
        pass

    def close(self) -> None:
        pass


class GuideOfEach(OneGuide):
    """Requests get these guides: the one with the name "0" the first, and so on."""

    def __init__(self, guides: Sequence[Guide]) -> None:
        self._guides = guides

    def outcome(self, request_id: str) -> Guide:
        return self._guides[int(request_id.partition("#")[0])]


def engine_with(source: GuideSource, **options: Any) -> CoreHarness:
    return CoreHarness(grammars=GrammarGate(lambda ready: source, lambda request_id: None), **options)


class Engine(CoreHarness):
    def __init__(self, **options: Any) -> None:
        super().__init__(grammars=GrammarGate(self._make, lambda name: self.core.wake(name)), **options)
        self.grammars.is_slow = True

    def _make(self, ready: Callable[[str], None]) -> FakeGrammars:
        self.grammars = FakeGrammars(ready)
        return self.grammars

    def ask(self, name: str, grammar: str = LONG, **fields: Any) -> Answer:
        return self.add(add_request(name, PROMPT, 8, constraint=constraint(grammar), **fields))

    def assert_forgotten(self) -> None:
        assert not self.grammars.compiling
        assert not self.grammars.outcomes
        self.run()


# ------------------------------------------------------------------------------------------------- compilation


def test_request_waits_for_its_grammar_and_blocks_no_other() -> None:
    engine = Engine()
    guided, plain = engine.ask("guided"), engine.add(add_request("plain", PROMPT, 4))
    while engine.core.has_work:
        engine.step()
    assert plain.token_ids == expected_output(PROMPT, 4)
    assert engine.core.has_requests
    engine.core.check_idle()
    engine.grammars.compile("guided")
    assert engine.core.has_work
    engine.run()
    assert guided.token_ids == guided_output(PROMPT, 8, LONG)
    assert guided.token_ids != expected_output(PROMPT, 8)
    engine.assert_forgotten()


def test_bad_grammar_refuses_its_request_whenever_that_is_known() -> None:
    engine = Engine()
    late = engine.ask("late", REFUSED)
    engine.grammars.is_slow = False
    early = engine.ask("early", REFUSED)
    engine.step()
    engine.grammars.compile("late")
    engine.step()
    for answer in (early, late):
        assert answer.finish_reason is FinishReason.ERROR
        assert answer.refusal is RefusalKind.INVALID
        assert answer.error == "the grammar is bad"
    engine.assert_forgotten()


@pytest.mark.parametrize(
    "end",
    [
        lambda engine: engine.core.abort(FRONTEND, ["a"]),
        lambda engine: engine.core.abort_frontend(FRONTEND),
        lambda engine: engine.core.fail_all("the engine ends"),
    ],
    ids=["abort", "frontend lost", "engine ends"],
)
def test_end_while_the_grammar_is_compiled_forgets_it(end: Callable[[Engine], None]) -> None:
    engine = Engine()
    engine.ask("a")
    engine.step()
    end(engine)
    engine.assert_forgotten()


@pytest.mark.parametrize("event", [Received(FRONTEND, Abort(["a"])), FrontendLost(FRONTEND)])
def test_request_that_ends_in_the_inbox_forgets_its_grammar(event: LinkEvent) -> None:
    engine, inbox = Engine(), Inbox()
    inbox.open(engine.core.ingest)
    inbox.put(Received(FRONTEND, add_request("a", PROMPT, constraint=constraint(LONG))))
    assert len(engine.grammars.compiling) == 1
    inbox.put(event)
    engine.assert_forgotten()


def test_next_attempt_does_not_get_the_guide_of_the_one_before() -> None:
    engine = Engine()
    engine.ask("a")
    output = guided_output(PROMPT, 2, LONG)
    answer = engine.ask("a", attempt=1, output=output)
    engine.grammars.compile("a")
    engine.run()
    assert [*output, *answer.token_ids[2:]] == guided_output(PROMPT, 8, LONG)
    engine.assert_forgotten()


def test_resumed_complete_request_ends_without_a_step() -> None:
    engine = Engine()
    text = next(text for text in map(str, range(100)) if 1 < len(guided_output(PROMPT, 7, text)) < 7)
    answer = engine.ask("a", text, output=guided_output(PROMPT, 7, text))
    engine.grammars.compile("a")
    engine.run()
    assert answer.finish_reason is FinishReason.STOP
    assert not engine.executor.steps


def test_engine_without_grammars_refuses_the_request() -> None:
    engine = CoreHarness()
    answer = engine.add(add_request("a", PROMPT, constraint=constraint("a")))
    engine.run()
    assert answer.refusal is RefusalKind.INVALID
    assert "takes no requests with a constraint" in answer.error


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (OutputConstraint(reasoning_end=(VOCAB_SIZE,)), "reasoning_end"),
        (OutputConstraint(reasoning_end=(1,), reasoning_start=VOCAB_SIZE), "reasoning_start"),
    ],
)
def test_a_mark_of_another_vocabulary_is_refused(constraint: OutputConstraint, name: str) -> None:
    engine = Engine()
    answer = engine.add(add_request("a", PROMPT, constraint=constraint))
    engine.run()
    assert answer.refusal is RefusalKind.INVALID
    assert name in answer.error


# ------------------------------------------------------------------------------------------------ ends of outputs


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("options", [{}, {"ignore_eos": True}, {"min_tokens": 9}])
def test_complete_output_ends_with_its_last_token(max_in_flight: int, options: dict[str, Any]) -> None:
    engine = engine_with(OneGuide(Tokens([9, 8, 7])), max_in_flight=max_in_flight)
    answer = engine.add(add_request("a", PROMPT, 20, constraint=constraint("a"), **options))
    engine.run()
    assert answer.token_ids == [9, 8, 7]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.stop_token_id is None


def test_output_that_is_complete_at_its_limit_has_not_been_cut() -> None:
    answers = {}
    for most in (2, 3):
        engine = engine_with(OneGuide(Tokens([9, 8, 7])))
        answers[most] = engine.add(add_request("a", PROMPT, most, constraint=constraint("a")))
        engine.run()
    assert answers[2].finish_reason is FinishReason.LENGTH
    assert answers[3].finish_reason is FinishReason.STOP


def test_stop_token_within_the_grammar_ends_the_output() -> None:
    engine = engine_with(OneGuide(Tokens([9, 8, 7])))
    answer = engine.add(add_request("a", PROMPT, 20, constraint=constraint("a"), stop_token_ids=(8,)))
    engine.run()
    assert answer.token_ids == [9, 8]
    assert answer.stop_token_id == 8


FORCED = list(range(1, MAX_FORCED_TOKENS + 8))
"""More than come with one step."""


@pytest.mark.parametrize("options", [{}, {"is_pipeline": True}, {"budget": 8}, {"max_num_seqs": 1}])
def test_the_only_token_that_may_follow_needs_no_step(options: dict[str, Any]) -> None:
    engine = engine_with(OneGuide(Tokens(FORCED, forces=True)), **options)
    answer = engine.add(add_request("a", PROMPT, 100, constraint=constraint("a")))
    engine.run()
    assert answer.token_ids == FORCED
    assert answer.finish_reason is FinishReason.STOP
    assert answer.num_outputs == 2


@pytest.mark.parametrize(("limit", "reason"), [({"max_tokens": 6}, "length"), ({"stop_token_ids": (6,)}, "stop")])
def test_forced_tokens_end_where_their_request_ends(limit: dict[str, Any], reason: str) -> None:
    engine = engine_with(OneGuide(Tokens(FORCED, forces=True)))
    fields = {"max_tokens": 100, **limit}
    answer = engine.add(add_request("a", PROMPT, constraint=constraint("a"), **fields))
    engine.run()
    assert answer.token_ids == FORCED[:6]
    assert answer.finish_reason == FinishReason(reason)
    assert len([step for step in engine.executor.steps if step.scheduled]) == 1


def test_forcing_has_a_budget_for_all_requests_of_a_step() -> None:
    guides = [Tokens([1] * 200, forces=True) for _ in range(16)]
    engine = engine_with(GuideOfEach(guides))
    answers = [engine.add(add_request(str(n), PROMPT, 200, constraint=constraint("a"))) for n in range(16)]
    engine.step()
    calls = sum(guide.tokenized for guide in guides)
    assert FORCING_BUDGET // (FORCING_COST + 200) <= calls <= FORCING_BUDGET // FORCING_COST + 1
    engine.run()
    assert [answer.token_ids for answer in answers] == [[1] * 200] * 16


def test_token_that_cannot_be_forced_is_sampled() -> None:
    class Broken(Tokens):
        def forced_tokens(self) -> Sequence[int]:
            raise GuideError("too much work")

    engine = engine_with(OneGuide(Broken([9, 8, 7])))
    answer = engine.add(add_request("a", PROMPT, 8, constraint=constraint("a")))
    engine.run()
    assert answer.token_ids == [9, 8, 7]


def test_tokens_with_log_probabilities_are_all_sampled() -> None:
    engine = engine_with(OneGuide(Tokens(FORCED, forces=True)))
    answer = engine.add(add_request("a", PROMPT, 100, constraint=constraint("a"), logprobs=0))
    engine.run()
    assert answer.token_ids == FORCED
    assert answer.num_outputs == len(FORCED)


def test_the_first_tokens_of_a_suspect_are_all_sampled() -> None:
    engine = engine_with(OneGuide(Tokens(FORCED, forces=True)))
    answer = engine.add(add_request("a", PROMPT, 100, constraint=constraint("a"), alone=True))
    engine.run()
    assert answer.token_ids == FORCED
    assert answer.num_outputs == SUSPECT_TOKENS + 1


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_thinking_budget_ends_the_reasoning(max_in_flight: int) -> None:
    """No grammar is needed: the output is free before and after."""
    limits = OutputConstraint(reasoning_end=(11, 12), thinking_budget=3)
    guide = OutputGuide(limits, None, vocab_size=VOCAB_SIZE, known_tokens=VOCAB_SIZE, eos_token_ids=[EOS])
    engine = engine_with(OneGuide(guide), max_in_flight=max_in_flight)
    answer = engine.add(add_request("a", PROMPT, 8, constraint=limits))
    engine.run()
    reasoning = [*expected_output(PROMPT, 3), 11, 12]
    assert answer.token_ids == [*reasoning, *expected_output([*PROMPT, *reasoning], 3)]
    masked = [bool(step.masked) for step in engine.executor.steps if step.scheduled]
    if max_in_flight == 1:
        assert masked == [False] * 6  # the end comes with the token before it


# ------------------------------------------------------------------------------------------------------- failures


def broken_next_to_a_plain_one(guide: Guide, max_in_flight: int = 1) -> Answer:
    engine = engine_with(OneGuide(guide), max_in_flight=max_in_flight)
    broken = engine.add(add_request("broken", PROMPT, 8, constraint=constraint("a")))
    plain = engine.add(add_request("plain", PROMPT, 8))
    engine.run()
    assert plain.token_ids == expected_output(PROMPT, 8)
    assert broken.token_ids == guided_output(PROMPT, 2, LONG)
    return broken


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_token_that_the_guide_rejects_ends_its_request_only(
    max_in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Confused(FakeGuide):
        def accept(self, token_ids: Sequence[int]) -> None:
            if len(self.output) == 2:
                raise GuideError("token 9 is not allowed")
            super().accept(token_ids)

    broken = broken_next_to_a_plain_one(Confused(LONG, []), max_in_flight)
    assert broken.finish_reason is FinishReason.ERROR
    assert "token 9 is not allowed" in broken.error
    assert "request broken ends with an error" in caplog.text


def test_grammar_too_complex_for_a_token_is_the_clients_fault() -> None:
    class Endless(FakeGuide):
        def accept(self, token_ids: Sequence[int]) -> None:
            if len(self.output) == 2:
                raise GrammarTooComplex("simplify it")
            super().accept(token_ids)

    broken = broken_next_to_a_plain_one(Endless(LONG, []))
    assert broken.finish_reason is FinishReason.ERROR
    assert (broken.refusal, broken.error) == (RefusalKind.INVALID, "simplify it")


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_mask_that_cannot_be_made_ends_its_request_only(
    max_in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    class TooComplex(FakeGuide):
        def fill(self, mask: npt.NDArray[np.uint32]) -> None:
            if len(self.output) == 2:
                raise GuideError("the grammar needs too much work")
            super().fill(mask)

    broken = broken_next_to_a_plain_one(TooComplex(LONG, []), max_in_flight)
    assert broken.refusal is RefusalKind.INVALID
    assert "too much work" in broken.error
    assert "request broken ends with an error" in caplog.text
