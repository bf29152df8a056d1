"""Which engine pods to delete now, so that ranks of an old revision are replaced one at a time.

A pure function for reconcile.py, asked again after every change. It remembers nothing: what is going on is read
from the pods, so an operator that is killed half-way goes on where it was.
"""

from collections.abc import Container, Sequence
from typing import Any, Final

from kvasir_operator.pods import Pod, is_terminating, ordinal

Workload = dict[str, Any]

REVISION_LABEL: Final = "controller-revision-hash"


def is_current(pod: Pod, stateful_set: Workload) -> bool:
    """Whether the pod is of the StatefulSet's newest template, as far as its controller has seen it."""
    revision: str | None = stateful_set.get("status", {}).get("updateRevision")
    label: str | None = pod["metadata"].get("labels", {}).get(REVISION_LABEL)
    return revision is None or label == revision


def is_observed(workload: Workload) -> bool:
    """Whether the workload's controller has seen its newest spec: until then its status is about an older one."""
    observed: int = workload.get("status", {}).get("observedGeneration", 0)
    newest: int = workload["metadata"]["generation"]
    return observed >= newest


def pods_to_replace(stateful_set: Workload, pods: Sequence[Pod], serving: Container[str]) -> list[Pod]:
    """`pods`: the engines of this StatefulSet; `serving`: the names of those that take requests.

    An old pod that does not serve is no loss: all of those go at once. An old pod that serves goes only while every
    other rank serves, too, so at most one rank is missing because of a roll-out.
    """
    if not is_observed(stateful_set):
        return []
    replicas: int = stateful_set["spec"]["replicas"]
    wanted = [pod for pod in pods if ordinal(pod) < replicas]
    old = [pod for pod in wanted if not is_terminating(pod) and not is_current(pod, stateful_set)]
    idle = [pod for pod in old if pod["metadata"]["name"] not in serving]
    if idle:
        return idle
    complete = len(wanted) == replicas and all(pod["metadata"]["name"] in serving for pod in wanted)
    return sorted(old, key=ordinal, reverse=True)[:1] if complete else []


def under_way(stateful_set: Workload | None, deployment: Workload | None, engines: Sequence[Pod]) -> str:
    """Which roll-outs are, in words; empty if none is."""
    words = []
    if stateful_set is not None:
        old = [pod for pod in engines if not is_current(pod, stateful_set)]
        if old and is_observed(stateful_set):
            words.append(f"{len(old)} engine pods are of an old revision")
    if deployment is not None and is_observed(deployment):
        status, replicas = deployment.get("status", {}), deployment["spec"]["replicas"]
        surplus = status.get("replicas", 0) - status.get("updatedReplicas", 0)
        if surplus > 0 and replicas > 0:
            words.append(f"{surplus} frontend pods are of an old revision")
    return "; ".join(words)
