"""Why the scheduler places a pod on no node, and what to change, from its message.

The scheduler counts each node under the first check that it fails. A node that is counted under a taint or a
selector may therefore have the resource, while one that lacks the resource is often a CPU node.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

_PART: Final = re.compile(r", (?=\d+ )")
"""Between "1 node(s) had untolerated taint {a: b}" and "2 Insufficient cpu"."""
_TAINT: Final = re.compile(r"node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{([^}:]*))?")
_SYSTEM_TAINT: Final = re.compile(
    r"node(-role)?\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|karpenter\.sh/"
    r"|ToBeDeletedByClusterAutoscaler|cloud\.google\.com/impending-node-termination"
)
"""Taints of control planes, and of nodes that are not ready or are being removed: no pod should tolerate them."""
_VOLUME: Final = re.compile(r"volume|ReadWriteOncePod", re.IGNORECASE)
_SELECTOR: Final = re.compile(r"node affinity|node selector", re.IGNORECASE)
_SPREAD: Final = re.compile(r"topology spread|pod (anti-)?affinity|anti-affinity", re.IGNORECASE)


def unscheduled(message: str, resource_name: str, amount: int = 1, component: str = "engine") -> Failure:
    """Return why no node accepts a pod that requests an amount of a resource, and what to change."""
    why = re.sub(r"^\d+/\d+ nodes are available: ", "", message.partition(" preemption:")[0])
    causes = _causes(_PART.split(why), f"{component}.pod")
    lacks = resource_name != "" and re.search(rf"Insufficient {re.escape(resource_name)}(?![-\w/]|\.\w)", why)
    if causes:
        more = f"; the other nodes have no free {resource_name}" if lacks else ""
        return Failure(Reason.UNSCHEDULABLE, f"no node accepts the pod: {'; '.join(causes)}{more} ({message})")
    if lacks:
        return _no_resource(message, resource_name, amount)
    return Failure(
        Reason.UNSCHEDULABLE,
        f"no node accepts the pod ({message}): check {component}.pod.resources, nodeSelector, affinity and "
        "tolerations against the nodes",
    )


def _causes(parts: Sequence[str], pod: str) -> list[str]:
    """Return the causes that a change of the pod can remove, most specific first."""
    kinds: tuple[tuple[Callable[[str], object], str], ...] = (
        (_VOLUME.search, f"create or correct the volume that {pod}.volumes names"),
        (_is_tolerable_taint, f"add it to {pod}.tolerations if the pod may run there"),
        (_SELECTOR.search, f"correct {pod}.nodeSelector or {pod}.affinity"),
        (_SPREAD.search, f"relax {pod}.topologySpreadConstraints or {pod}.affinity"),
    )
    left, causes = [*parts], []
    for matches, advice in kinds:
        found = [part for part in left if matches(part)]
        left = [part for part in left if part not in found]
        if found:
            causes.append(f"{', '.join(part.strip(' .') for part in found)}: {advice}")
    return causes


def _is_tolerable_taint(part: str) -> bool:
    """Return whether the part names a taint that a pod may tolerate, or does not say which one."""
    match = _TAINT.search(part)
    return match is not None and not _SYSTEM_TAINT.match(match[1] or "")


def _no_resource(message: str, resource_name: str, amount: int) -> Failure:
    if amount == 1:
        missing, free = f"a free {resource_name}", "add nodes or free one"
    else:
        missing = f"{amount} free {resource_name}"
        free = f"add nodes or free {amount} on one node, create the service with more engine.nodes"
    return Failure(
        Reason.INSUFFICIENT_GPU,
        f"no node has {missing} ({message}): {free}, lower engine.dataParallelSize, or set another "
        "engine.resourceName",
    )
