import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import SERVICE, STATEFUL_SET
from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Ownership
from kvasir_operator.observe.pod_state import MAX_MESSAGE_BYTES as MAX_POD_MESSAGE_BYTES
from kvasir_operator.plan.conditions import MAX_MESSAGE_BYTES, Decisions
from kvasir_operator.plan.plan import TIME_FORMAT
from kvasir_operator.plan.problem import Problem
from kvasir_operator.plan.service_status import Status, invalid_status, service_status
from kvasir_operator.profiles import Profile
from operator_facts import LATER, engines, frontends, observed, owned_by, service, workload
from status_facts import AT_NOON, READY, SURGE, conditions, message, restarted, status_of

CRD = Path(__file__).parents[3] / "crds" / "inferenceservices.serving.kvasir.dev.yaml"
AT_LATER = LATER.strftime(TIME_FORMAT)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [(("leaving",), "1 engine pod is being removed"), (("leaving", "leaving"), "2 engine pods are being removed")],
)
def test_ranks_that_leave_are_counted_in_the_message(ranks: tuple[str, ...], words: str) -> None:
    assert message(status_of(engines("ready", "ready", *ranks))).endswith(f"; {words}")


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ([Reason.REFUSED], "Refused"),
        ([Reason.PAUSED, Reason.REFUSED], "Refused; also: Paused"),
        ([Reason.REFUSED] * 3, "Refused; also: Refused; also: Refused"),
    ],
)
def test_the_message_has_all_problems_most_urgent_first(reasons: list[Reason], words: str) -> None:
    problems = tuple(Problem(reason, f"{reason}") for reason in reasons)
    status = status_of(engines("ready", "ready"), READY, Decisions(problems))
    assert message(status) == f"2/2 engines are ready, 1/1 frontends are ready; {words}"
    assert conditions(status)["Ready"] == "True Refused"


def test_a_message_names_three_problems_and_counts_the_others() -> None:
    problems = tuple(Problem(Reason.REFUSED, f"child {number}") for number in range(5))
    words = message(status_of(engines("ready", "ready"), READY, Decisions(problems)))
    assert "; child 0; also: child 1; also: child 2; " in words
    assert words.endswith("and 2 more")
    assert "child 3" not in words


def test_a_service_of_a_foreign_service_object_has_no_url() -> None:
    found = observed(service(), engines("ready", "ready"), READY)
    key = SERVICE, "demo"
    foreign = owned_by(found.children[key], Ownership.FOREIGN)
    problem = Decisions((Problem(Reason.NAME_TAKEN, "Service demo already exists"),))
    for children in ({**found.children, key: foreign}, {k: v for k, v in found.children.items() if k != key}):
        status = status_of(engines("ready", "ready"), READY, problem, children=children)
        assert "url" not in status
        assert conditions(status)["Ready"] == "False NameTaken"
    assert status_of(engines("ready", "ready"))["url"] == "http://demo.default.svc/v1"


def test_a_surge_rank_is_listed_and_is_not_a_replica() -> None:
    status = status_of(engines("ready", "leaving", "ready"), READY, SURGE)
    assert status["engines"]["summary"] == "2/2"
    assert [rank["rank"] for rank in status["engines"]["ranks"]] == [0, 1, 2]
    assert status["replicas"] == 2  # the value that /scale reads
    leaving = status_of(engines("ready", "ready", "ready"))  # rank 2 is above the desired size
    assert (leaving["engines"]["summary"], leaving["replicas"]) == ("2/2", 3)


def test_the_selector_for_scale_finds_the_pods_of_the_engines() -> None:
    found = observed(service(), engines("ready", "ready"), READY)
    (stateful_set,) = (child.object for (kind, _), child in found.children.items() if kind is STATEFUL_SET)
    labels = dict(label.split("=") for label in status_of(engines("ready", "ready"))["selector"].split(","))
    assert labels == stateful_set["spec"]["selector"]["matchLabels"]


def test_ready_frontends_are_at_most_the_desired_ones() -> None:
    status = status_of(engines("ready", "ready"), frontends("ready", "ready"), deployment=workload(2))
    assert (status["frontends"]["ready"], status["frontends"]["desired"]) == (1, 1)


def test_the_same_facts_give_the_same_status_later() -> None:
    ranks = engines("ready", "loading")
    first = status_of(ranks)
    assert status_of(ranks, previous=first, now=AT_LATER) == first


def test_times_change_with_their_subject_only() -> None:
    first = status_of(engines("unready", "loading"), ())
    second = status_of(engines("ready", "loading"), READY, previous=first, now=AT_LATER)
    assert [rank["since"] for rank in second["engines"]["ranks"]] == [AT_LATER, AT_NOON]
    assert {entry["type"]: entry["lastTransitionTime"] for entry in second["conditions"]} == {
        "Ready": AT_LATER,
        "EnginesReady": AT_NOON,
        "FrontendsReady": AT_LATER,
        "Progressing": AT_NOON,
        "Degraded": AT_LATER,
        "UpgradeAvailable": AT_NOON,
        "Reconciling": AT_NOON,
        "Stalled": AT_NOON,
    }


def test_ranks_without_a_pod_and_ranks_that_leave_are_listed() -> None:
    status = status_of(engines("-", "ready", "leaving"))
    found = [(rank["rank"], rank["pod"], rank["phase"]) for rank in status["engines"]["ranks"]]
    assert found == [
        (0, "demo-engine-0", "Scheduling"),
        (1, "demo-engine-1", "Ready"),
        (2, "demo-engine-2", "Draining"),
    ]
    assert (status["engines"]["summary"], status["replicas"]) == ("1/2", 2)


def test_a_rank_whose_pod_is_forbidden_is_named_with_the_reason() -> None:
    status = status_of(engines("ready"), not_created={1: 'pods "demo-engine-1" is forbidden: exceeded quota'})
    assert conditions(status)["Ready"] == "True Unschedulable"
    assert conditions(status)["Degraded"] == "True Unschedulable"
    why = (
        'the pod cannot be created (pods "demo-engine-1" is forbidden: exceeded quota): change the quota or policy '
        "that forbids it, or change the InferenceService"
    )
    assert f"pod demo-engine-1: {why}" in message(status, "EnginesReady")
    assert status["engines"]["ranks"][1]["message"] == why


def test_restarts_are_counted_by_rank_and_in_all() -> None:
    crashed = [restarted("demo-engine-0", 2), restarted("demo-engine-1", 0), restarted("demo-engine-2", 1)]
    status = status_of(crashed, [restarted("demo-frontend-a", 4, "frontend")])
    assert status["engines"]["restarts"] == 3
    assert [rank.get("restarts") for rank in status["engines"]["ranks"]] == [2, None, 1]
    assert status["frontends"]["restarts"] == 4


def test_the_release_and_the_refused_surge_are_kept() -> None:
    status = status_of(
        engines("ready", "ready"),
        READY,
        Decisions(release="1.0-a", rollout={"surgeRefused": "rev-2", "surgeFrom": 2}),
    )
    assert (status["release"], status["rollout"]) == ("1.0-a", {"surgeRefused": "rev-2", "surgeFrom": 2})
    assert "rollout" not in status_of(engines("ready", "ready"))


def stored_bytes(status: Status) -> int:
    """Return the size of its JSON in the API server, where Go writes < > & and control characters as six bytes."""
    text = json.dumps(status, ensure_ascii=False)
    return len(text.encode()) + 5 * sum(text.count(letter) for letter in "<>&")


@pytest.mark.parametrize(
    ("letter", "most"),
    [("x", 2**20), ("é", 2**20), ("\n", 2**20), ("🙂", 2**20), ("<", 1.25 * 2**20), ("\x01", 1.25 * 2**20)],
)
def test_a_status_is_bounded_whatever_pods_report(letter: str, most: float) -> None:
    """etcd stores objects of up to 1.5 MiB, and watches send the status to every watching client."""
    of = service(1024)
    ranks = engines(*["refused"] * 1024)
    text = letter * (MAX_POD_MESSAGE_BYTES // len(letter.encode()))
    ranks = tuple(
        replace(
            found, state=replace(found.state, message=text, progress="9223372036.9/9223372036.9 GB", restarts=9999)
        )
        for found in ranks
    )
    long = Decisions((Problem(Reason.REFUSED, letter * 100_000),), (letter * 100_000,))
    not_created = dict.fromkeys(range(1024), letter * 100_000)
    for found in (
        observed(of, ranks, READY, stateful_set=workload(1024)),
        observed(of, (), READY, stateful_set=workload(1024), not_created=not_created),
    ):
        status = service_status(of, found, engine_ranks(of, found), long, {}, AT_NOON)
        assert len(status["engines"]["ranks"]) == 1024
        assert stored_bytes(status) < most
        sizes = [len(entry["message"].encode()) for entry in status["conditions"]]
        assert max(sizes) <= MAX_MESSAGE_BYTES <= 4096


def test_an_invalid_spec_keeps_the_last_known_status() -> None:
    before = status_of(engines("ready", "ready"))
    status = invalid_status("spec.engine: no", 4, before, AT_LATER)
    assert set(conditions(status)) == set(conditions(before))
    assert {value.split()[1] for value in conditions(status).values()} == {"InvalidSpec"}
    assert conditions(status)["Ready"].startswith("True"), "the pods keep serving"
    assert conditions(status)["Progressing"].startswith("False")
    assert {entry["message"].partition(";")[0] for entry in status["conditions"]} == {"spec.engine: no"}
    assert (status["observedGeneration"], status["engines"]) == (4, before["engines"])
    assert invalid_status("spec.engine: no", 4, status, "later still") == status


def test_an_invalid_spec_keeps_conditions_of_some_services() -> None:
    before = status_of(engines("ready", "ready"), expose={"host": "llm.example.com"})
    (exposed,) = [entry for entry in before["conditions"] if entry["type"] == "Exposed"]
    status = invalid_status("spec.engine: no", 4, before, AT_LATER)
    assert status["conditions"][-1] == exposed
    assert invalid_status("spec.engine: no", 4, status, "later still") == status


def test_a_spec_that_never_could_be_used_has_conditions_too() -> None:
    status = invalid_status("spec.engine: no", 4, {}, AT_NOON)
    assert conditions(status).pop("Stalled") == "True InvalidSpec"
    assert {word for kind, word in conditions(status).items() if kind != "Stalled"} == {"False InvalidSpec"}
    assert {entry["observedGeneration"] for entry in status["conditions"]} == {4}
    assert {entry["lastTransitionTime"] for entry in status["conditions"]} == {AT_NOON}


def test_progressing_is_false_while_the_spec_cannot_be_used() -> None:
    before = status_of(engines("ready", "loading"))
    assert conditions(before)["Progressing"] == "True Loading"
    status = invalid_status("spec.engine: no", 4, before, AT_LATER)
    assert conditions(status)["Progressing"] == "False InvalidSpec"


def test_every_field_of_the_status_is_in_the_schema() -> None:
    """The API server rejects unknown fields."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    decisions = Decisions(release="1.0-a", rollout={"surgeRefused": "rev-2", "surgeFrom": 2})
    ranks = [restarted("demo-engine-0", 1), *engines("-", "loading")]
    expose = {"host": "llm.example.com"}
    status = status_of(ranks, READY, decisions, adapters=[], expose=expose, profile=Profile("h100", {}))
    status["autoscaling"] = {"requestsPerRank": 4.5, "firstRanks": 1}

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
