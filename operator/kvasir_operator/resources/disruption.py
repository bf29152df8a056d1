"""PodDisruptionBudgets: how many pods an eviction, such as `kubectl drain`, may take at once."""

from kvasir_operator.resources.names import Component, Object, metadata, selector_labels, workload_name
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService


def disruption_budgets(service: InferenceService, release: Release) -> list[Object]:
    return [
        _budget(service, release, "frontend", service.frontend.replicas),
        _budget(service, release, "engine", service.engine.data_parallel_size),
    ]


def _budget(service: InferenceService, release: Release, component: Component, pods: int) -> Object:
    """One pod at a time.

    The eviction of an only pod waits until the operator has started another elsewhere, provided that the operator
    sees that the node is cordoned: otherwise the drain would never end.
    """
    moved_by_operator = pods == 1 and release.reads_nodes
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service, workload_name(service, component), component),
        "spec": {
            "maxUnavailable": 0 if moved_by_operator else 1,
            "selector": {"matchLabels": selector_labels(service, component)},
            # A pod that does not serve must not hold up the drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
