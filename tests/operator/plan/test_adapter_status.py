"""The condition AdaptersReady, from what the frontends report."""

from dataclasses import replace

import pytest

from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest
from kvasir_operator.cluster.kinds import CONFIG_MAP
from kvasir_operator.plan.adapter_status import (
    FAILED_SECONDS,
    READING_SECONDS,
    adapter_conditions,
    adapter_counts,
    seconds_until_read,
)
from kvasir_operator.plan.plan import make_plan
from kvasir_operator.plan.service_status import Status
from kvasir_operator.resources.adapter_list import adapters_text
from operator_facts import NOON, RELEASE, engines, frontends, observed, service, workload

SQL = {"name": "sql", "source": "hf://org/sql"}
TONE = {"name": "tone", "source": "hf://org/tone"}
ADAPTED = service(frontends=2, model={"source": "demo://", "loraAdapters": [SQL, TONE]})
LIST = adapter_list_digest(adapters_text(ADAPTED).encode())
READ = ReportedAdapters(LIST, 2)
BROKEN = ReportedAdapters(LIST, 1, ("tone: hf://org/tone was not found",))
MANY = ReportedAdapters(LIST, 0, ("a: 1", "b: 2", "c: 3", "d: 4"))
OLD = ReportedAdapters("an older list", 1)


@pytest.mark.parametrize(
    ("reports", "expected", "served"),
    [
        ((READ, READ), "True AsDesired: 2 adapters can be requested", 2),
        ((READ, OLD), "False Loading: 1 frontend has not read the list of 2 adapters yet", 0),
        ((READ, None), "False Loading: 1 frontend has not read the list of 2 adapters yet", 0),
        ((READ, BROKEN), "False ModelNotFound: of 2 adapters: tone: hf://org/tone was not found", 1),
        ((MANY, MANY), "False ModelNotFound: of 2 adapters: a: 1; b: 2; c: 3; and 1 more", 0),
        ((OLD, BROKEN), "False ModelNotFound: of 2 adapters: tone: hf://org/tone was not found", 0),
    ],
)
def test_adapters_are_ready_when_all_frontends_serve_them(
    reports: tuple[ReportedAdapters | None, ...], expected: str, served: int
) -> None:
    members = tuple(
        replace(member, adapters=report)
        for member, report in zip(frontends("ready", "ready"), reports, strict=True)
    )
    seen = observed(ADAPTED, engines("ready"), members)
    (found,) = adapter_conditions(ADAPTED, seen)
    assert f"{found.status} {found.reason}: {found.message}" == expected
    assert adapter_counts(ADAPTED, seen) == {"desired": 2, "ready": served}


def test_adapters_wait_for_a_ready_frontend() -> None:
    (found,) = adapter_conditions(ADAPTED, observed(ADAPTED, engines("ready"), frontends("starting", "starting")))
    assert (found.reason, found.message) == ("Loading", "no frontend is ready to serve 2 adapters")


def test_the_removed_list_stays_until_its_pods_are_gone() -> None:
    without = service(frontends=2)
    ranks, front = engines("ready", "ready"), frontends("ready", "ready")
    unchanged = observed(ADAPTED, ranks, front)
    lists = {key: child for key, child in unchanged.children.items() if key[0] is CONFIG_MAP}
    rolling = observed(without, ranks, front, deployment=workload(2, updated=1))
    done = observed(without, ranks, front)
    prunes = [
        make_plan(without, replace(seen, children={**seen.children, **lists}), {}, RELEASE, NOON).prunes
        for seen in (unchanged, rolling, done)
    ]
    assert [len(each) for each in prunes] == [0, 0, 1]


def test_a_service_without_a_list_has_no_condition() -> None:
    seen = observed(service(), engines("ready"), frontends("ready"))
    assert adapter_conditions(service(), seen) == []
    assert adapter_counts(service(), seen) is None


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        (("True", "AsDesired"), None),
        (("False", "Loading"), READING_SECONDS),
        (("False", "ModelNotFound"), FAILED_SECONDS),
    ],
)
def test_frontends_are_asked_again_until_they_are_ready(state: tuple[str, str], seconds: float | None) -> None:
    status: Status = {"conditions": [{"type": "AdaptersReady", "status": state[0], "reason": state[1]}]}
    assert seconds_until_read(status) == seconds
    assert seconds_until_read({}) is None
