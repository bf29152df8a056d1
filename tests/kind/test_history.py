import copy
from typing import Any

from e2e.history import Event, Object, ahead_of_facts

LABELS = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "engine"}


class Cluster:
    """Writes objects one after the other, with ascending resource versions as an API server does."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, content: Object, gone: bool = False) -> None:
        self.events.append(Event(len(self.events) + 1, gone, copy.deepcopy(content)))

    def settle(self) -> None:
        """Write a service of one rank and one frontend, all of the first generation and revision."""
        self.write(stateful_set(1, 1, "one"))
        self.write(deployment(1, 1, 1, 1))
        self.write(pod("one"))
        self.write(service(1, 1, "AsDesired"))


def test_history_of_a_settled_service_has_no_problem() -> None:
    cluster = Cluster()
    cluster.settle()
    assert ahead_of_facts(cluster.events) == []


def test_history_names_a_change_that_no_controller_has_observed() -> None:
    cluster = Cluster()
    cluster.settle()
    cluster.write(stateful_set(2, 1, "one"))
    cluster.write(service(2, 2, "AsDesired", ready=1))
    cluster.write(stateful_set(2, 2, "two"))
    (problem,) = ahead_of_facts(cluster.events)
    assert "StatefulSet demo-engine is at generation 2, but its controller has observed 1" in problem


def test_history_names_a_pod_of_an_old_revision() -> None:
    cluster = Cluster()
    cluster.settle()
    cluster.write(stateful_set(2, 2, "two"))
    cluster.write(service(2, 2, "AsDesired", ready=1))
    (problem,) = ahead_of_facts(cluster.events)
    assert "demo-engine-0 is not of revision two" in problem


def test_history_names_a_frontend_of_an_old_template() -> None:
    cluster = Cluster()
    cluster.settle()
    cluster.write(deployment(2, 2, 1, 2))
    cluster.write(service(2, 2, "AsDesired", ready=1))
    (problem,) = ahead_of_facts(cluster.events)
    assert "1 of 2 pods of demo-frontend are new" in problem


def test_history_accepts_a_roll_out_reported_until_its_end() -> None:
    """Events may arrive in any order, because each kind has its own watch."""
    cluster = Cluster()
    cluster.settle()
    cluster.write(service(2, 1, "AsDesired"))  # a new spec, an old status
    cluster.write(stateful_set(2, 1, "one"))
    cluster.write(service(2, 2, "RollingOut"))
    cluster.write(stateful_set(2, 2, "two"))
    cluster.write(pod("one"), gone=True)
    cluster.write(pod("two"))
    cluster.write(service(2, 2, "AsDesired"))
    assert ahead_of_facts(reversed(cluster.events)) == []


def test_history_judges_a_status_only_when_it_is_written() -> None:
    cluster = Cluster()
    cluster.settle()
    cluster.write(stateful_set(2, 1, "one"))  # drift that the operator cannot have seen yet
    labelled = service(1, 1, "AsDesired")
    labelled["metadata"]["labels"] = {"team": "a"}
    cluster.write(labelled)
    assert ahead_of_facts(cluster.events) == []


def service(generation: int, observed: int, reason: str, **status: Any) -> Object:
    progressing = {"type": "Progressing", "status": str(reason != "AsDesired"), "reason": reason}
    return {
        "kind": "InferenceService",
        "metadata": {"name": "demo", "generation": generation},
        "status": {"observedGeneration": observed, "conditions": [progressing], **status},
    }


def stateful_set(generation: int, observed: int, revision: str) -> Object:
    return {
        "kind": "StatefulSet",
        "metadata": {"name": "demo-engine", "generation": generation},
        "status": {"observedGeneration": observed, "updateRevision": revision},
    }


def deployment(generation: int, observed: int, updated: int, replicas: int) -> Object:
    return {
        "kind": "Deployment",
        "metadata": {"name": "demo-frontend", "generation": generation},
        "status": {"observedGeneration": observed, "updatedReplicas": updated, "replicas": replicas},
    }


def pod(revision: str) -> Object:
    labels = {**LABELS, "controller-revision-hash": revision}
    return {"kind": "Pod", "metadata": {"name": "demo-engine-0", "labels": labels}}
