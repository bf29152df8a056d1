"""Which requests run, run alone, wait or are refused after the losses of their engines."""

from dataclasses import dataclass

import pytest

from kvasir.client.moves.strikes import FORGET_SECONDS, REPORT_SECONDS, Strikes, Verdict
from kvasir.link.protocol import FailedStep, StepRequest
from runtime.fake_clock import FakeClock

POISON, INNOCENT, WAITS = b"poison", b"innocent", b"waits"


@dataclass
class Had:
    """A request that a lost engine had."""

    digest: bytes
    attempt_tokens: int = 0


def step(engine: str, *digests: bytes) -> FailedStep:
    return FailedStep(engine, tuple(StepRequest(f"id-{n}", digest) for n, digest in enumerate(digests)))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def strikes(clock: FakeClock) -> Strikes:
    return Strikes(clock)


def lose(strikes: Strikes, engine: str, *had: bytes, ran: tuple[bytes, ...] | None = None) -> None:
    """`ran`: the requests of the step that the engine reports itself; None: it cannot."""
    rank = int(engine[1:].split("-")[0])
    strikes.lost(engine, rank, [Had(digest) for digest in had], None if ran is None else step(engine, *ran))


def verdicts(strikes: Strikes, *digests: bytes) -> list[Verdict]:
    return [strikes.verdict(digest) for digest in digests]


def test_nothing_is_suspected_at_first(strikes: Strikes) -> None:
    assert not strikes
    assert strikes.verdict(POISON) is Verdict.RUN


def test_only_requests_of_the_failed_step_run_alone(strikes: Strikes) -> None:
    lose(strikes, "e0", POISON, INNOCENT, WAITS, ran=(POISON, INNOCENT))
    assert verdicts(strikes, POISON, INNOCENT, WAITS) == [Verdict.ALONE, Verdict.ALONE, Verdict.RUN]


@pytest.mark.parametrize("crowd", [(POISON,), (POISON, INNOCENT)])
def test_request_that_fails_its_second_engine_alone_is_refused(strikes: Strikes, crowd: tuple[bytes, ...]) -> None:
    lose(strikes, "e0", POISON, INNOCENT, ran=crowd)
    assert strikes.verdict(POISON) is Verdict.ALONE
    lose(strikes, "e1", POISON, INNOCENT, ran=(POISON,))
    assert strikes.verdict(POISON) is Verdict.REFUSE
    assert strikes.verdict(INNOCENT) in (Verdict.RUN, Verdict.ALONE)


def test_one_failure_alone_is_not_enough(strikes: Strikes) -> None:
    """An engine may be killed from outside."""
    lose(strikes, "e0", INNOCENT, ran=(INNOCENT,))
    assert strikes.verdict(INNOCENT) is Verdict.ALONE


def test_third_strike_in_company_refuses(strikes: Strikes) -> None:
    for n, verdict in enumerate((Verdict.ALONE, Verdict.ALONE, Verdict.REFUSE)):
        lose(strikes, f"e{n}", POISON, INNOCENT, ran=(POISON, INNOCENT))
        assert strikes.verdict(POISON) is verdict


def test_lost_engine_without_a_report_makes_its_requests_suspects_at_once(strikes: Strikes) -> None:
    lose(strikes, "e0", POISON, WAITS)
    assert verdicts(strikes, POISON, WAITS) == [Verdict.ALONE, Verdict.ALONE]
    strikes.joined("e0-new", 0, step("e0", POISON))
    assert verdicts(strikes, POISON, WAITS) == [Verdict.ALONE, Verdict.RUN]


def test_third_engine_waits_for_the_reports_on_the_first_two(strikes: Strikes) -> None:
    lose(strikes, "e0", POISON, INNOCENT)
    lose(strikes, "e1", POISON, INNOCENT)
    assert verdicts(strikes, POISON, INNOCENT) == [Verdict.WAIT, Verdict.WAIT]
    strikes.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    assert verdicts(strikes, POISON, INNOCENT) == [Verdict.WAIT, Verdict.WAIT]
    strikes.joined("e1-new", 1, step("e1", POISON))
    assert verdicts(strikes, POISON, INNOCENT) == [Verdict.REFUSE, Verdict.ALONE]


def test_reports_may_come_in_any_order(strikes: Strikes) -> None:
    lose(strikes, "e0", POISON)
    lose(strikes, "e1", POISON)
    strikes.joined("e1-new", 1, step("e1", POISON))
    strikes.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    assert strikes.verdict(POISON) is Verdict.REFUSE


def test_each_failed_step_counts_once(strikes: Strikes) -> None:
    """As the last message of an engine, and in each Hello of its successors."""
    lose(strikes, "e0", POISON, ran=(POISON,))
    for _ in range(3):
        strikes.joined("e0-new", 0, step("e0", POISON))
    assert strikes.count(POISON) == 1


def test_engine_that_comes_back_has_not_failed(strikes: Strikes) -> None:
    lose(strikes, "e0", INNOCENT)
    strikes.joined("e0", 0, step("e0-old", POISON))
    assert strikes.verdict(INNOCENT) is Verdict.RUN


@pytest.mark.parametrize("report", [FailedStep(""), step("e0-other", POISON)])
def test_successor_that_knows_of_no_such_failure_clears(strikes: Strikes, report: FailedStep) -> None:
    """The pod was deleted, with its black box, or the engine ended in order."""
    lose(strikes, "e0", INNOCENT)
    strikes.joined("e0-new", 0, report)
    assert strikes.verdict(INNOCENT) is Verdict.RUN


def test_successor_without_a_black_box_clears_nobody(strikes: Strikes) -> None:
    lose(strikes, "e0", INNOCENT)
    strikes.joined("e1-new", 1, None)
    assert strikes.count(INNOCENT) == 0  # another rank
    strikes.joined("e0-new", 0, None)
    assert strikes.count(INNOCENT) == 1


def test_wait_for_a_report_ends(strikes: Strikes, clock: FakeClock) -> None:
    lose(strikes, "e0", POISON)
    lose(strikes, "e1", POISON)
    clock.now += REPORT_SECONDS
    assert strikes.verdict(POISON) is Verdict.ALONE
    lose(strikes, "e2", POISON, ran=(POISON, INNOCENT))
    assert strikes.verdict(POISON) is Verdict.REFUSE


def test_report_after_the_wait_counts_no_second_time(strikes: Strikes, clock: FakeClock) -> None:
    lose(strikes, "e0", POISON)
    clock.now += REPORT_SECONDS
    assert strikes.verdict(POISON) is Verdict.ALONE
    strikes.joined("e0-new", 0, step("e0", POISON))
    assert strikes.count(POISON) == 1


def test_another_frontend_learns_it_from_the_engines(strikes: Strikes) -> None:
    """The client sends its request to this frontend after two engines of the other one."""
    strikes.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    strikes.joined("e1-new", 1, step("e1", POISON))
    assert verdicts(strikes, POISON, INNOCENT) == [Verdict.REFUSE, Verdict.ALONE]


def test_request_that_gets_further_starts_again(strikes: Strikes) -> None:
    """Engines that are killed again and again do not add up for a long request."""
    for n in range(5):
        strikes.lost(f"e{n}", n, [Had(INNOCENT, 1)], step(f"e{n}", INNOCENT))
        assert strikes.verdict(INNOCENT) is Verdict.ALONE
    strikes.lost("e9", 9, [Had(INNOCENT, 0)], step("e9", INNOCENT))
    assert strikes.verdict(INNOCENT) is Verdict.REFUSE


def test_late_report_does_not_count_for_a_request_that_got_further(strikes: Strikes) -> None:
    strikes.lost("e0", 0, [Had(INNOCENT), Had(POISON)], None)
    strikes.lost("e1", 1, [Had(INNOCENT, 1)], None)
    assert strikes.verdict(INNOCENT) is Verdict.ALONE
    strikes.joined("e0-new", 0, step("e0", INNOCENT, POISON))
    assert (strikes.count(INNOCENT), strikes.count(POISON)) == (0, 1)
    strikes.joined("e1-new", 1, step("e1", INNOCENT))
    assert strikes.count(INNOCENT) == 1


def test_answer_clears(strikes: Strikes) -> None:
    lose(strikes, "e0", INNOCENT, ran=(INNOCENT,))
    lose(strikes, "e1", INNOCENT)
    strikes.passed(INNOCENT)
    assert strikes.verdict(INNOCENT) is Verdict.RUN


def test_strikes_are_forgotten(strikes: Strikes, clock: FakeClock) -> None:
    lose(strikes, "e0", POISON, ran=(POISON,))
    lose(strikes, "e1", POISON, ran=(POISON,))
    clock.now += FORGET_SECONDS - 1
    assert strikes.verdict(POISON) is Verdict.REFUSE
    clock.now += 1
    assert strikes.verdict(POISON) is Verdict.RUN
    assert not strikes


def test_choices_of_one_prompt_count_as_one_request(strikes: Strikes) -> None:
    lose(strikes, "e0", POISON, ran=(POISON, POISON))
    lose(strikes, "e1", POISON, ran=(POISON, POISON))
    assert strikes.verdict(POISON) is Verdict.REFUSE
