"""What there is of an InferenceService in the cluster: its children and pods, listed anew from the API server.

A list, not a cache: a watch that lost its connection reports no deletions. Used by reconcile.py.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kvasir_operator.cluster import Cluster, ClusterError, NotFoundError, Object
from kvasir_operator.kinds import CHILDREN, EVENT, NODE, POD, Kind
from kvasir_operator.pods import EngineReport, Pod, has_ended, is_owned_by, is_ready, is_terminating
from kvasir_operator.resources.children import children_selector

log = logging.getLogger(__name__)

ChildKey = tuple[Kind, str]
"""Kind and name, in the namespace of the InferenceService."""

_NOT_MADE: Final = re.compile(
    r"create Pod \S+-(?P<ordinal>\d+) in StatefulSet \S+ failed error: (?P<why>.*)", re.DOTALL
)


@dataclass(frozen=True)
class Observed:
    children: Mapping[ChildKey, Object]
    """By label; not necessarily ours."""
    pods: Sequence[Object]


async def observe(cluster: Cluster, namespace: str, name: str) -> Observed:
    selector = children_selector(name)
    *listed, pods = await asyncio.gather(*(cluster.list(kind, namespace, selector) for kind in (*CHILDREN, POD)))
    children = {
        (kind, child["metadata"]["name"]): child
        for kind, found in zip(CHILDREN, listed, strict=True)
        for child in found
    }
    return Observed(children, pods)


def engine_pods(pods: Sequence[Object], stateful_set: Object | None) -> list[Object]:
    """Those that the StatefulSet made."""
    if stateful_set is None:
        return []
    return [pod for pod in pods if is_owned_by(pod, stateful_set["metadata"]["uid"])]


def frontend_pods(pods: Sequence[Object]) -> list[Object]:
    """Those that serve or will: one that ends or has ended has a successor already."""
    return [
        pod
        for pod in pods
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "frontend"
        and not is_terminating(pod)
        and not has_ended(pod)
    ]


async def lost_nodes(
    cluster: Cluster, pods: Sequence[Pod], reports: Mapping[str, EngineReport]
) -> Mapping[str, str]:
    """By name, what is wrong with the nodes of pods that look as if theirs were gone.

    Without the right to read nodes (an operator of some namespaces only) nothing is known about them.
    """
    suspects = {
        pod["spec"]["nodeName"]
        for pod in pods
        if pod["spec"].get("nodeName") and not is_ready(pod) and pod["metadata"]["name"] not in reports
    }
    lost: dict[str, str] = {}
    for name in sorted(suspects):
        try:
            node = await cluster.get(NODE, None, name)
        except NotFoundError:
            lost[name] = f"node {name} is gone"
        except ClusterError as error:
            log.debug("node %s cannot be read: %s", name, error)
        else:
            conditions = node.get("status", {}).get("conditions", ())
            ready: Object = next((condition for condition in conditions if condition["type"] == "Ready"), {})
            if ready.get("status") in ("False", "Unknown"):
                lost[name] = f"node {name} is not ready ({ready.get('message') or ready.get('reason')})"
    return lost


async def refused_pods(cluster: Cluster, stateful_set: Object, since: datetime) -> Mapping[int, str]:
    """By ordinal, why pods of the StatefulSet were refused since then: by a quota, a policy.

    Its controller says so in Events and nowhere else. Without the right to list them nothing is known.
    """
    metadata = stateful_set["metadata"]
    fields = f"involvedObject.uid={metadata['uid']},reason=FailedCreate"
    try:
        events = await cluster.list(EVENT, metadata["namespace"], fields=fields)
    except ClusterError as error:
        log.debug("events about %s cannot be read: %s", metadata["name"], error)
        return {}
    refused: dict[int, str] = {}
    for event in sorted(events, key=_last_time):
        match = _NOT_MADE.search(event.get("message", ""))
        if match and _last_time(event) >= since.strftime("%Y-%m-%dT%H:%M:%SZ"):
            refused[int(match["ordinal"])] = match["why"]
    return refused


def _last_time(event: Object) -> str:
    return event.get("lastTimestamp") or ""
