import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedProgress, StatusReport
from kvasir_operator.observe.pod_state import amount
from pod_facts import CRASHED, RUNNING, has, state_of

REPORTS: dict[str, tuple[StatusReport, Phase, Reason, str]] = {
    "starting": (StatusReport(Phase.STARTING), Phase.STARTING, Reason.LOADING, ""),
    "loading": (
        StatusReport(Phase.LOADING, progress=ReportedProgress(3_100_000_000, 15_000_000_000)),
        Phase.LOADING,
        Reason.LOADING,
        "3.1/15.0 GB",
    ),
    "loading without progress": (StatusReport(Phase.LOADING), Phase.LOADING, Reason.LOADING, ""),
    "warming": (StatusReport(Phase.WARMING, "step 1"), Phase.WARMING, Reason.WARMING, ""),
    "ready before its probe": (StatusReport(Phase.READY), Phase.READY, Reason.WARMING, ""),
    "draining": (StatusReport(Phase.DRAINING), Phase.DRAINING, Reason.ROLLING_OUT, ""),
    "failed": (StatusReport(Phase.FAILED, "out of luck"), Phase.FAILED, Reason.CRASH_LOOPING, ""),
    "link refused": (
        StatusReport(Phase.READY, "another model", Reason.LINK_REFUSED),
        Phase.READY,
        Reason.LINK_REFUSED,
        "",
    ),
    "keys are garbage": (
        StatusReport(Phase.STARTING, "the key k is empty", Reason.INVALID_SPEC),
        Phase.STARTING,
        Reason.INVALID_SPEC,
        "",
    ),
}


@pytest.mark.parametrize("case", REPORTS)
def test_pod_state_of_an_unready_pod_that_reports(case: str) -> None:
    report, phase, reason, progress = REPORTS[case]
    found = state_of(RUNNING, report=report)
    assert (found.phase, found.reason, found.progress) == (phase, reason, progress)
    assert (found.message, found.ready) == (report.message, False)


@pytest.mark.parametrize("reason", [Reason.LINK_REFUSED, Reason.INVALID_SPEC])
def test_a_ready_pod_that_reports_a_reason_does_not_serve(reason: Reason) -> None:
    report = StatusReport(Phase.READY, "another tokenizer", reason)
    found = state_of(has({"running": {}}, ready=True), report=report)
    assert (found.phase, found.reason, found.ready) == (Phase.READY, reason, False)
    assert found.message == "another tokenizer"


def test_a_ready_pod_shows_its_message() -> None:
    found = state_of(has({"running": {}}, ready=True), report=StatusReport(Phase.READY, "a step takes long"))
    assert (found.reason, found.ready, found.message) == (Reason.AS_DESIRED, True, "a step takes long")


def test_an_engine_that_loads_again_after_a_crash_is_loading() -> None:
    restarted = has({"running": {}}, lastState=CRASHED, restartCount=1)
    found = state_of(restarted, report=StatusReport(Phase.LOADING, progress=ReportedProgress(1, 10**9)))
    assert (found.phase, found.reason, found.restarts) == (Phase.LOADING, Reason.LOADING, 1)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, ""),
        (ReportedProgress(0, 0), ""),
        (ReportedProgress(100_000, 2_500_000), "0.1/2.5 MB"),
        (ReportedProgress(0, 10**9), "0.0/1.0 GB"),
        (ReportedProgress(2**63 - 1, 1), "9223372036854.8/0.0 MB"),
    ],
)
def test_amount_has_the_unit_of_the_total(progress: ReportedProgress | None, text: str) -> None:
    assert amount(progress) == text
