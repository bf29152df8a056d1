import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import MAX_LINKS, StatusReport
from kvasir_operator.observe.frontend_links import STARTING_SECONDS, awaited_frontends, is_linked
from kvasir_operator.observe.observed import Container, Pod
from operator_facts import pod


def frontend(address: str, **facts: object) -> Pod:
    return pod(f"frontend-{address}", "frontend", **{"addresses": frozenset({address}), **facts})


def engine_with(*links: str) -> StatusReport:
    return StatusReport(Phase.READY, links=links)


def test_a_stopping_frontend_does_not_stand_for_a_new_one() -> None:
    """While frontends are replaced, the number of links is right before the links are."""
    pods = [frontend("10.0.0.1", ready=False, terminating=True), frontend("10.0.0.2")]
    awaited = awaited_frontends(pods, dict.fromkeys((each.uid for each in pods), 0.0))
    assert [each.addresses for each in awaited] == [{"10.0.0.2"}]
    assert is_linked(engine_with("10.0.0.1"), awaited) is False
    assert is_linked(engine_with("10.0.0.1", "10.0.0.2"), awaited) is True


@pytest.mark.parametrize(
    ("facts", "seconds", "is_awaited"),
    [
        ({}, 0.0, True),
        ({}, STARTING_SECONDS - 1, True),
        ({}, STARTING_SECONDS, False),
        ({"addresses": frozenset()}, 0.0, False),
        ({"terminating": True}, 0.0, False),
        ({"has_ended": True}, 0.0, False),
        ({"container": Container("image:1", "running", "", "", None, None, 1)}, 0.0, False),
    ],
)
def test_a_frontend_that_starts_is_awaited_for_a_while(
    facts: dict[str, object], seconds: float, is_awaited: bool
) -> None:
    starting = frontend("10.0.0.2", **{"ready": False, **facts})
    assert awaited_frontends([starting], {starting.uid: seconds}) == ([starting] if is_awaited else [])


def test_a_ready_frontend_is_awaited_without_end() -> None:
    ready = frontend("10.0.0.2")
    assert awaited_frontends([ready, pod("engine-0")], {ready.uid: 1e6, "uid-engine-0": 0.0}) == [ready]


def test_any_address_of_a_frontend_links_it() -> None:
    both = pod("frontend", "frontend", addresses=frozenset({"10.0.0.1", "fd00::1"}))
    assert is_linked(engine_with("fd00::1"), [both]) is True


def test_an_engine_without_a_link_is_not_linked() -> None:
    assert is_linked(engine_with(), []) is False


def test_an_engine_that_reports_no_links_is_unknown() -> None:
    assert is_linked(StatusReport(Phase.READY), [frontend("10.0.0.1")]) is None
    assert is_linked(None, []) is None


def test_a_report_with_the_most_links_stands_for_all() -> None:
    links = [f"10.0.{number // 250}.{number % 250}" for number in range(MAX_LINKS)]
    assert is_linked(engine_with(*links), [frontend("10.9.9.9")]) is True
