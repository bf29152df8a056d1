from dataclasses import dataclass

import pytest

from kvasir.client.moves.quarantine import FORGET_SECONDS, REPORT_SECONDS, Quarantine, Treatment
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
def quarantine(clock: FakeClock) -> Quarantine:
    return Quarantine(clock)


def lose(quarantine: Quarantine, engine: str, *had: bytes, ran: tuple[bytes, ...] | None = None) -> None:
    """`ran`: the requests of the step that the engine reports itself; None: it cannot."""
    rank = int(engine[1:].split("-")[0])
    quarantine.lost(engine, rank, [Had(digest) for digest in had], None if ran is None else step(engine, *ran))


def treatments(quarantine: Quarantine, *digests: bytes) -> list[Treatment]:
    return [quarantine.treatment(digest) for digest in digests]


def test_nothing_is_suspected_at_first(quarantine: Quarantine) -> None:
    assert not quarantine
    assert quarantine.treatment(POISON) is Treatment.RUN


def test_only_requests_of_the_failed_step_run_alone(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON, INNOCENT, WAITS, ran=(POISON, INNOCENT))
    assert treatments(quarantine, POISON, INNOCENT, WAITS) == [
        Treatment.ALONE,
        Treatment.ALONE,
        Treatment.RUN,
    ]


@pytest.mark.parametrize("crowd", [(POISON,), (POISON, INNOCENT)])
def test_request_that_fails_its_second_engine_alone_is_refused(
    quarantine: Quarantine, crowd: tuple[bytes, ...]
) -> None:
    lose(quarantine, "e0", POISON, INNOCENT, ran=crowd)
    assert quarantine.treatment(POISON) is Treatment.ALONE
    lose(quarantine, "e1", POISON, INNOCENT, ran=(POISON,))
    assert quarantine.treatment(POISON) is Treatment.REFUSE
    assert quarantine.treatment(INNOCENT) in (Treatment.RUN, Treatment.ALONE)


def test_one_failure_alone_is_not_enough(quarantine: Quarantine) -> None:
    """An engine may be killed from outside."""
    lose(quarantine, "e0", INNOCENT, ran=(INNOCENT,))
    assert quarantine.treatment(INNOCENT) is Treatment.ALONE


def test_third_strike_in_company_refuses(quarantine: Quarantine) -> None:
    for n, verdict in enumerate((Treatment.ALONE, Treatment.ALONE, Treatment.REFUSE)):
        lose(quarantine, f"e{n}", POISON, INNOCENT, ran=(POISON, INNOCENT))
        assert quarantine.treatment(POISON) is verdict


def test_loss_without_a_report_makes_requests_suspects_at_once(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON, WAITS)
    assert treatments(quarantine, POISON, WAITS) == [Treatment.ALONE, Treatment.ALONE]
    quarantine.joined("e0-new", 0, step("e0", POISON))
    assert treatments(quarantine, POISON, WAITS) == [Treatment.ALONE, Treatment.RUN]


def test_third_engine_waits_for_the_reports_on_the_first_two(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON, INNOCENT)
    lose(quarantine, "e1", POISON, INNOCENT)
    assert treatments(quarantine, POISON, INNOCENT) == [Treatment.WAIT, Treatment.WAIT]
    quarantine.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    assert treatments(quarantine, POISON, INNOCENT) == [Treatment.WAIT, Treatment.WAIT]
    quarantine.joined("e1-new", 1, step("e1", POISON))
    assert treatments(quarantine, POISON, INNOCENT) == [Treatment.REFUSE, Treatment.ALONE]


def test_reports_may_come_in_any_order(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON)
    lose(quarantine, "e1", POISON)
    quarantine.joined("e1-new", 1, step("e1", POISON))
    quarantine.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    assert quarantine.treatment(POISON) is Treatment.REFUSE


def test_each_failed_step_counts_once(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON, ran=(POISON,))
    for _ in range(3):
        quarantine.joined("e0-new", 0, step("e0", POISON))
    assert quarantine.count(POISON) == 1


def test_engine_that_comes_back_has_not_failed(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", INNOCENT)
    quarantine.joined("e0", 0, step("e0-old", POISON))
    assert quarantine.treatment(INNOCENT) is Treatment.RUN


@pytest.mark.parametrize("report", [FailedStep(""), step("e0-other", POISON)])
def test_successor_that_knows_of_no_such_failure_clears(quarantine: Quarantine, report: FailedStep) -> None:
    """The pod was deleted, with its black box, or the engine ended in order."""
    lose(quarantine, "e0", INNOCENT)
    quarantine.joined("e0-new", 0, report)
    assert quarantine.treatment(INNOCENT) is Treatment.RUN


def test_successor_without_a_black_box_clears_nobody(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", INNOCENT)
    quarantine.joined("e1-new", 1, None)
    assert quarantine.count(INNOCENT) == 0  # another rank
    quarantine.joined("e0-new", 0, None)
    assert quarantine.count(INNOCENT) == 1


def test_wait_for_a_report_ends(quarantine: Quarantine, clock: FakeClock) -> None:
    lose(quarantine, "e0", POISON)
    lose(quarantine, "e1", POISON)
    clock.now += REPORT_SECONDS
    assert quarantine.treatment(POISON) is Treatment.ALONE
    lose(quarantine, "e2", POISON, ran=(POISON, INNOCENT))
    assert quarantine.treatment(POISON) is Treatment.REFUSE


def test_report_after_the_wait_counts_no_second_time(quarantine: Quarantine, clock: FakeClock) -> None:
    lose(quarantine, "e0", POISON)
    clock.now += REPORT_SECONDS
    assert quarantine.treatment(POISON) is Treatment.ALONE
    quarantine.joined("e0-new", 0, step("e0", POISON))
    assert quarantine.count(POISON) == 1


def test_another_frontend_learns_it_from_the_engines(quarantine: Quarantine) -> None:
    """The client sends its request to this frontend after two engines of the other one."""
    quarantine.joined("e0-new", 0, step("e0", POISON, INNOCENT))
    quarantine.joined("e1-new", 1, step("e1", POISON))
    assert treatments(quarantine, POISON, INNOCENT) == [Treatment.REFUSE, Treatment.ALONE]


def test_request_that_gets_further_starts_again(quarantine: Quarantine) -> None:
    """Engines that are killed again and again do not add up for a long request."""
    for n in range(5):
        quarantine.lost(f"e{n}", n, [Had(INNOCENT, 1)], step(f"e{n}", INNOCENT))
        assert quarantine.treatment(INNOCENT) is Treatment.ALONE
    quarantine.lost("e9", 9, [Had(INNOCENT, 0)], step("e9", INNOCENT))
    assert quarantine.treatment(INNOCENT) is Treatment.REFUSE


def test_late_report_does_not_count_for_request_that_got_further(quarantine: Quarantine) -> None:
    quarantine.lost("e0", 0, [Had(INNOCENT), Had(POISON)], None)
    quarantine.lost("e1", 1, [Had(INNOCENT, 1)], None)
    assert quarantine.treatment(INNOCENT) is Treatment.ALONE
    quarantine.joined("e0-new", 0, step("e0", INNOCENT, POISON))
    assert (quarantine.count(INNOCENT), quarantine.count(POISON)) == (0, 1)
    quarantine.joined("e1-new", 1, step("e1", INNOCENT))
    assert quarantine.count(INNOCENT) == 1


def test_answer_clears(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", INNOCENT, ran=(INNOCENT,))
    lose(quarantine, "e1", INNOCENT)
    quarantine.passed(INNOCENT)
    assert quarantine.treatment(INNOCENT) is Treatment.RUN


def test_strikes_are_forgotten(quarantine: Quarantine, clock: FakeClock) -> None:
    lose(quarantine, "e0", POISON, ran=(POISON,))
    lose(quarantine, "e1", POISON, ran=(POISON,))
    clock.now += FORGET_SECONDS - 1
    assert quarantine.treatment(POISON) is Treatment.REFUSE
    clock.now += 1
    assert quarantine.treatment(POISON) is Treatment.RUN
    assert not quarantine


def test_choices_of_one_prompt_count_as_one_request(quarantine: Quarantine) -> None:
    lose(quarantine, "e0", POISON, ran=(POISON, POISON))
    lose(quarantine, "e1", POISON, ran=(POISON, POISON))
    assert quarantine.treatment(POISON) is Treatment.REFUSE
