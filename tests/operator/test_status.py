"""The status of a service: conditions, ranks, and that nothing changes while nothing happens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.local.schema import Schema
from kvasir_operator.pods import Phase, PodState
from kvasir_operator.reasons import Reason
from kvasir_operator.spec import InferenceService, parse_service
from kvasir_operator.status import Observation, Problem, Status, refused_status, service_status

DEMO = Path(__file__).parents[2] / "manifests" / "examples" / "demo.yaml"
CRD = Path(__file__).parents[2] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"
NOON, LATER = "2026-11-21T12:00:00Z", "2026-11-21T12:05:00Z"

READY = ("Ready", "AsDesired")


def service() -> InferenceService:
    """The demo: two ranks, one frontend."""
    completed, problems = Schema.of_crd().complete(yaml.safe_load(DEMO.read_text()))
    assert not problems
    return parse_service(completed)


def state(
    name: str, phase: str = "Ready", reason: str = "AsDesired", message: str = "", progress: str = ""
) -> PodState:
    ready = (phase, reason) == READY
    return PodState(name, Phase(phase), Reason(reason), message, progress, ready)


def seen(engines: Sequence[PodState], frontends: Sequence[PodState], **more: Any) -> Observation:
    facts: dict[str, Any] = {"generation": 3, "problems": (), "reachable": True, "rolling": "", **more}
    return Observation(ranks=dict(enumerate(engines)), frontends=frontends, **facts)


def engine(rank: int, *facts: str) -> PodState:
    return state(f"demo-engine-{rank}", *facts)


def frontend(*facts: str) -> PodState:
    return state("demo-frontend-x", *facts)


def conditions(status: Status) -> dict[str, tuple[str, str]]:
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}


LOADING = ("Loading", "Loading", "", "3.1/15.0 GB")
WARMING = ("Warming", "Warming")
NO_IMAGE = ("Pulling", "ImagePullFailed", "image x cannot be pulled")
CRASHING = ("Failed", "CrashLooping", "it ended with exit code 1")
DRAINING = ("Draining", "RollingOut")

# engines, frontends, more → Ready, EnginesReady, FrontendsReady, Progressing, Degraded
TABLE: dict[str, tuple[Observation, str, str, str, str, str]] = {
    "all is well": (
        seen([engine(0), engine(1)], [frontend()]),
        *("True AsDesired", "True AsDesired", "True AsDesired", "False AsDesired", "False AsDesired"),
    ),
    "nothing is there yet": (
        seen([], []),
        *("False Loading", "False Loading", "False Loading", "True Loading", "False Loading"),
    ),
    "first start": (
        seen([engine(0, *LOADING), engine(1, *WARMING)], [frontend("Starting", "Loading")]),
        *("False Warming", "False Warming", "False Loading", "True Warming", "False Warming"),
    ),
    "an engine is missing": (
        seen([engine(0), engine(1, *LOADING)], [frontend()]),
        *("True Loading", "False Loading", "True AsDesired", "True Loading", "True Loading"),
    ),
    "an engine cannot be": (
        seen([engine(0), engine(1, *NO_IMAGE)], [frontend()]),
        *("True ImagePullFailed", "False ImagePullFailed", "True AsDesired", "False ImagePullFailed"),
        "True ImagePullFailed",
    ),
    "no engine can be": (
        seen([engine(0, *NO_IMAGE), engine(1, *CRASHING)], [frontend("Starting", "Loading")]),
        *("False ImagePullFailed", "False ImagePullFailed", "False Loading", "False ImagePullFailed"),
        "False ImagePullFailed",
    ),
    "no frontend can be": (
        seen([engine(0), engine(1)], [frontend(*CRASHING)]),
        *("False CrashLooping", "True AsDesired", "False CrashLooping", "False CrashLooping", "False CrashLooping"),
    ),
    "a roll-out": (
        seen([engine(0), engine(1, *DRAINING)], [frontend()], rolling="2 engine pods are of an old revision"),
        *("True RollingOut", "False RollingOut", "True AsDesired", "True RollingOut", "True RollingOut"),
    ),
    "a roll-out that is stuck": (
        seen([engine(0), engine(1, *NO_IMAGE)], [frontend()], rolling="1 engine pods are of an old revision"),
        *("True ImagePullFailed", "False ImagePullFailed", "True AsDesired", "False ImagePullFailed"),
        "True ImagePullFailed",
    ),
    "fewer ranks": (
        seen([engine(0), engine(1), engine(2, *DRAINING)], [frontend()]),
        *("True RollingOut", "True AsDesired", "True AsDesired", "True RollingOut", "False RollingOut"),
    ),
    "a name is taken": (
        seen([engine(0), engine(1)], [frontend()], problems=[Problem(Reason.NAME_TAKEN, "Secret demo-link")]),
        *("True NameTaken", "True AsDesired", "True AsDesired", "False NameTaken", "False NameTaken"),
    ),
    "the name of the Service is taken": (
        seen([engine(0), engine(1)], [frontend()], reachable=False, problems=[Problem(Reason.NAME_TAKEN, "x")]),
        *("False NameTaken", "True AsDesired", "True AsDesired", "False NameTaken", "False NameTaken"),
    ),
    "no frontend takes the engines": (
        seen([engine(i, "Ready", "LinkRefused", "another model") for i in (0, 1)], [frontend()]),
        *("False LinkRefused", "False LinkRefused", "True AsDesired", "False LinkRefused", "False LinkRefused"),
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_conditions(case: str) -> None:
    observation, *expected = TABLE[case]
    found = conditions(service_status(service(), observation, {}, NOON))
    names = ("Ready", "EnginesReady", "FrontendsReady", "Progressing", "Degraded")
    assert found == {name: tuple(words.split()) for name, words in zip(names, expected, strict=True)}


def test_messages_name_the_pod_and_how_far_it_is() -> None:
    loading = seen([engine(0), engine(1, *LOADING)], [frontend()])
    ready = service_status(service(), loading, {}, NOON)["conditions"][0]
    assert ready["message"] == (
        "1/2 engines are ready, 1/1 frontends are ready; pod demo-engine-1: Loading 3.1/15.0 GB"
    )
    stuck = seen([engine(0, *NO_IMAGE), engine(1, *NO_IMAGE)], [frontend()])
    ready = service_status(service(), stuck, {}, NOON)["conditions"][0]
    assert ready["message"].endswith("pod demo-engine-0: image x cannot be pulled (and 1 more)")


def test_the_same_observation_gives_the_same_status_later() -> None:
    observation = seen([engine(0), engine(1, *LOADING)], [frontend()])
    first = service_status(service(), observation, {}, NOON)
    assert service_status(service(), observation, first, LATER) == first


def test_times_change_with_what_they_are_about_only() -> None:
    first = service_status(service(), seen([engine(0, *WARMING), engine(1, *LOADING)], []), {}, NOON)
    second = service_status(service(), seen([engine(0), engine(1, *LOADING)], [frontend()]), first, LATER)
    assert [rank["since"] for rank in second["engines"]["ranks"]] == [LATER, NOON]
    changed = {entry["type"]: entry["lastTransitionTime"] for entry in second["conditions"]}
    assert changed == {
        "Ready": LATER,
        "EnginesReady": NOON,
        "FrontendsReady": LATER,
        "Progressing": NOON,
        "Degraded": LATER,
    }


def test_ranks_without_a_pod_and_ranks_that_leave_are_listed() -> None:
    observation = Observation(
        generation=1,
        ranks={1: engine(1), 2: engine(2, *DRAINING)},
        frontends=[],
        problems=[],
        reachable=True,
        rolling="",
    )
    status = service_status(service(), observation, {}, NOON)
    found = [(rank["rank"], rank["pod"], rank["phase"]) for rank in status["engines"]["ranks"]]
    assert found == [
        (0, "demo-engine-0", "Scheduling"),
        (1, "demo-engine-1", "Ready"),
        (2, "demo-engine-2", "Draining"),
    ]
    assert status["engines"]["summary"] == "1/2"
    assert status["replicas"] == 2


def test_a_rank_whose_pod_is_forbidden_is_named_with_the_reason() -> None:
    observation = seen([engine(0)], [frontend()], refused={1: 'pods "demo-engine-1" is forbidden: exceeded quota'})
    status = service_status(service(), observation, {}, NOON)
    assert conditions(status)["Ready"] == ("True", "Unschedulable")
    assert conditions(status)["Degraded"] == ("True", "Unschedulable")
    (message,) = [entry["message"] for entry in status["conditions"] if entry["type"] == "EnginesReady"]
    assert "pod demo-engine-1: it cannot be made (pods" in message
    assert "exceeded quota" in status["engines"]["ranks"][1]["message"]
    assert status["replicas"] == 1  # it is no pod


def test_a_spec_that_cannot_be_read_is_told_and_what_was_known_is_kept() -> None:
    before = service_status(service(), seen([engine(0), engine(1)], [frontend()]), {}, NOON)
    status = refused_status("spec.engine: no", 4, before, LATER)
    assert set(conditions(status)) == set(conditions(before))
    assert set(conditions(status).values()) == {("False", "InvalidSpec")}
    assert {entry["message"].partition(";")[0] for entry in status["conditions"]} == {"spec.engine: no"}
    assert (status["observedGeneration"], status["engines"]) == (4, before["engines"])
    assert refused_status("spec.engine: no", 4, status, "later still") == status


def test_every_field_of_the_status_is_in_the_schema() -> None:
    """The API server refuses a field that it does not know."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    status = service_status(service(), seen([engine(0), engine(1, *LOADING)], [frontend()]), {}, NOON)

    def check(value: Any, node: dict[str, Any], path: str) -> None:
        if node["type"] == "object":
            for field, inner in value.items():
                assert field in node["properties"], f"{path}.{field}"
                check(inner, node["properties"][field], f"{path}.{field}")
        elif node["type"] == "array":
            for item in value:
                check(item, node["items"], path)

    check(status, schema, "status")
    assert set(schema["properties"]) == set(status)
