"""Explains, from the scheduler's message, why no node accepts a pod.

The scheduler counts each node under the first failed check, so a node counted under a taint may have the resource.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Object, Pod
from kvasir_operator.resources.taints import tolerates

# between "1 node(s) had untolerated taint {a: b}" and "2 Insufficient cpu"
_PART: Final = re.compile(r", (?=\d+ )")
_TAINT: Final = re.compile(r"node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{([^}:]*))?")
_COUNTED_TAINTS: Final = re.compile(r"\d+ node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?! *\{)")
# no pod should tolerate these: control planes, unready or leaving nodes
_SYSTEM_TAINT: Final = re.compile(
    r"node(-role)?\.kubernetes\.io/|node\.cloudprovider\.kubernetes\.io/|karpenter\.sh/"
    r"|ToBeDeletedByClusterAutoscaler|cloud\.google\.com/impending-node-termination"
)
_VOLUME: Final = re.compile(r"volume|ReadWriteOncePod", re.IGNORECASE)
_SELECTOR: Final = re.compile(r"node affinity|node selector", re.IGNORECASE)
_SPREAD: Final = re.compile(r"topology spread|pod (anti-)?affinity|anti-affinity", re.IGNORECASE)


def unscheduled(message: str, resource_name: str, amount: int = 1, component: str = "engine") -> Failure:
    """Return why no node accepts the pod, and what to change."""
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


def counts_taints(message: str) -> bool:
    return _COUNTED_TAINTS.search(message) is not None


def with_taints(pod: Pod, nodes: Iterable[Object], resource_name: str) -> str:
    """Return the scheduler's message with the names of these nodes' taints."""
    found: Counter[str] = Counter()
    for node in nodes:
        spec = node.get("spec", {})
        if spec.get("unschedulable"):
            continue
        if (taint := _first_untolerated(pod, spec.get("taints") or ())) is None:
            continue
        # a quantity is text, such as "8" or "1k"
        if resource_name and node.get("status", {}).get("allocatable", {}).get(resource_name, "0") == "0":
            found[f"Insufficient {resource_name}"] += 1
        else:
            found[f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"] += 1
    named = ", ".join(f"{count} {text}" for text, count in found.items())
    return _COUNTED_TAINTS.sub(lambda counted: named or counted[0], pod.schedule_message, count=1)


def _first_untolerated(pod: Pod, taints: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    rejecting = (taint for taint in taints if taint["effect"] in ("NoSchedule", "NoExecute"))
    return next((taint for taint in rejecting if not any(tolerates(each, taint) for each in pod.tolerations)), None)


def _causes(parts: Sequence[str], pod: str) -> list[str]:
    """Return the causes that a change of the pod can remove, most specific first."""
    kinds: tuple[tuple[Callable[[str], object], str], ...] = (
        (_VOLUME.search, f"create or correct the volume that {pod}.volumes or model.source names"),
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
    # or it does not say which one
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
