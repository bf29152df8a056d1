from dataclasses import replace

import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Member
from kvasir_operator.plan.conditions import Decisions, condition
from kvasir_operator.plan.problem import Problem
from operator_facts import SURGE_SECONDS, engines, frontends
from status_facts import READY, SURGE, conditions, message, status_of

STARTING = frontends("starting")
CRASHING = frontends("crashing")
ROLLING = Decisions(under_way=("2 engine pods still run the old revision",))
REFUSED = Decisions((Problem(Reason.REFUSED, "exceeded quota"),))


# ranks, frontends, decisions → Ready, EnginesReady, FrontendsReady, Progressing, Degraded
TABLE: dict[str, tuple[tuple[Member, ...], tuple[Member, ...], Decisions, tuple[str, str, str, str, str]]] = {
    "all is well": (
        engines("ready", "ready"),
        READY,
        Decisions(),
        ("True AsDesired", "True AsDesired", "True AsDesired", "False AsDesired", "False AsDesired"),
    ),
    "nothing is there yet": (
        (),
        (),
        Decisions(),
        ("False Loading", "False Loading", "False Loading", "True Loading", "False Loading"),
    ),
    "first start": (
        engines("loading", "unready"),
        STARTING,
        Decisions(),
        ("False Warming", "False Warming", "False Loading", "True Warming", "False Warming"),
    ),
    "an engine is missing": (
        engines("ready", "loading"),
        READY,
        Decisions(),
        ("True Loading", "False Loading", "True AsDesired", "True Loading", "True Loading"),
    ),
    "an engine cannot start": (
        engines("ready", "no-image"),
        READY,
        Decisions(),
        (
            "True ImagePullFailed",
            "False ImagePullFailed",
            "True AsDesired",
            "False ImagePullFailed",
            "True ImagePullFailed",
        ),
    ),
    "no engine can start": (
        engines("no-image", "crashing"),
        STARTING,
        Decisions(),
        (
            "False ImagePullFailed",
            "False ImagePullFailed",
            "False Loading",
            "False ImagePullFailed",
            "False ImagePullFailed",
        ),
    ),
    "no frontend can start": (
        engines("ready", "ready"),
        CRASHING,
        Decisions(),
        ("False CrashLooping", "True AsDesired", "False CrashLooping", "False CrashLooping", "False CrashLooping"),
    ),
    "a roll-out": (
        engines("ready", "leaving"),
        READY,
        ROLLING,
        ("True RollingOut", "False RollingOut", "True AsDesired", "True RollingOut", "True RollingOut"),
    ),
    "a roll-out of ranks that serve": (
        engines("old ready", "old ready"),
        READY,
        ROLLING,
        ("True RollingOut", "True AsDesired", "True AsDesired", "True RollingOut", "False RollingOut"),
    ),
    "a roll-out that is stuck": (
        engines("ready", "no-image"),
        READY,
        ROLLING,
        (
            "True ImagePullFailed",
            "False ImagePullFailed",
            "True AsDesired",
            "False ImagePullFailed",
            "True ImagePullFailed",
        ),
    ),
    "a surge rank serves": (
        engines("ready", "leaving", "ready"),
        READY,
        SURGE,
        ("True RollingOut", "True AsDesired", "True AsDesired", "True RollingOut", "False RollingOut"),
    ),
    "a surge rank cannot start": (
        engines("old ready", "old ready", "no-image"),
        READY,
        SURGE,
        (
            "True ImagePullFailed",
            "True AsDesired",
            "True AsDesired",
            "False ImagePullFailed",
            "False ImagePullFailed",
        ),
    ),
    "fewer ranks": (
        engines("ready", "ready", "leaving"),
        READY,
        Decisions(),
        ("True RollingOut", "True AsDesired", "True AsDesired", "True RollingOut", "False RollingOut"),
    ),
    "a child is refused": (
        engines("ready", "ready"),
        READY,
        REFUSED,
        ("True Refused", "True AsDesired", "True AsDesired", "False Refused", "False Refused"),
    ),
    "paused": (
        engines("ready", "loading"),
        READY,
        Decisions((Problem(Reason.PAUSED, "spec.paused is true"),)),
        ("True Paused", "False Loading", "True AsDesired", "False Paused", "True Loading"),
    ),
    "no frontend accepts the engines": (
        engines("refused", "refused"),
        READY,
        Decisions(),
        ("False LinkRefused", "False LinkRefused", "True AsDesired", "False LinkRefused", "False LinkRefused"),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_conditions(case: str) -> None:
    ranks, front, decisions, expected = TABLE[case]
    found = conditions(status_of(ranks, front, decisions))
    del found["Reconciling"], found["Stalled"]
    names = ("Ready", "EnginesReady", "FrontendsReady", "Progressing", "Degraded", "UpgradeAvailable")
    assert found == dict(zip(names, (*expected, "False AsDesired"), strict=True))


@pytest.mark.parametrize(
    ("waited", "ready"),
    [(SURGE_SECONDS - 0.1, "True RollingOut"), (SURGE_SECONDS, "True Unschedulable")],
)
def test_a_surge_rank_without_room_is_a_problem_in_time(waited: float, ready: str) -> None:
    ranks = [*engines("old ready", "old ready"), *engines("-", "-", "pending", waited=waited)]
    assert conditions(status_of(ranks, READY, SURGE))["Ready"] == ready


def test_messages_name_the_pod_and_its_progress() -> None:
    found = engines("ready", "loading")
    progress = replace(found[1], state=replace(found[1].state, progress="3.1/15.0 GB"))
    assert message(status_of([found[0], progress])) == (
        "1/2 engines are ready, 1/1 frontends are ready; pod demo-engine-1: Loading 3.1/15.0 GB"
    )
    stuck = message(status_of(engines("no-image", "no-image")))
    assert stuck.endswith("pod demo-engine-0: image x cannot be pulled (and 1 more)")
    moving = message(status_of(engines("loading", "loading"), frontends("starting")), "EnginesReady")
    assert moving == "0/2 engines are ready; pod demo-engine-0: Loading; pod demo-engine-1: Loading"


def test_an_available_upgrade_names_the_annotation() -> None:
    status = status_of(engines("ready", "ready"), READY, Decisions(release="1.0-a", upgrade="2.0-b"))
    assert conditions(status)["UpgradeAvailable"] == "True UpgradePending"
    assert "serving.kvasir.dev/release=2.0-b" in message(status, "UpgradeAvailable")
    assert conditions(status)["Ready"] == "True AsDesired"


@pytest.mark.parametrize("upgrade", ["", "2.0-b"])
def test_a_workload_that_an_upgrade_replaces_is_named(upgrade: str) -> None:
    decisions = Decisions(release="1.0-a", upgrade=upgrade, unpinned=("StatefulSet demo-engine",))
    found = message(status_of(engines("ready", "ready"), READY, decisions), "UpgradeAvailable")
    assert "; the pod template of StatefulSet demo-engine is longer than 128 KiB" in found


def test_the_ready_condition_is_found() -> None:
    assert condition({}, "Ready") == {}
    assert condition(status_of(engines("ready", "ready")), "Ready")["status"] == "True"
