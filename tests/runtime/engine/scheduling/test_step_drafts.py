import sys
from types import FunctionType

import pytest

from kvasir.engine.grammar import late_masks
from kvasir.engine.grammar.grammar_gate import GrammarGate
from kvasir.engine.scheduling import step_drafts
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.engine.fake_executor import expected_output
from runtime.engine.fake_guides import FakeGrammars, FakeGuide, constraint

PROMPT = [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("caller", [step_drafts._allowed, late_masks._fill_along])
def test_a_guide_that_cannot_be_copied_ends_no_other(caller: FunctionType, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = FakeGuide.copy
    failures: list[FakeGuide] = []

    def copy(guide: FakeGuide) -> FakeGuide:
        if sys._getframe(1).f_code is caller.__code__:
            failures.append(guide)
            raise RuntimeError("a defect")
        return copied(guide)

    monkeypatch.setattr(FakeGuide, "copy", copy)
    engine = CoreHarness(max_step_rows=1000, grammars=GrammarGate(FakeGrammars))
    engine.drafter.guess = lambda token_ids: expected_output(token_ids, 3)
    engine.add(add_request("a", PROMPT, 30, constraint=constraint("a")))
    other = engine.add(add_request("b", PROMPT, 9))
    engine.run()
    assert failures
    assert other.token_ids == expected_output(PROMPT, 9)
