"""PodDisruptionBudgets, which limit how many pods an eviction (such as `kubectl drain`) may take at once."""

from kvasir_operator.resources.names import Component, Object, metadata, selector_labels, workload_name
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService


def disruption_budgets(service: InferenceService, release: Release) -> list[Object]:
    return [
        _budget(service, "frontend", service.frontend.replicas, moved=release.reads_nodes),
        _budget(
            service,
            "engine",
            service.engine.data_parallel_size,
            moved=release.reads_nodes and service.rollout.max_surge > 0,
        ),
    ]


def _budget(service: InferenceService, component: Component, pods: int, *, moved: bool) -> Object:
    """Return a budget of one pod at a time.

    `moved` is whether the operator starts another pod elsewhere before the eviction of the only pod. If it does
    not, the eviction must be allowed, or the drain would never end.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service, workload_name(service, component), component),
        "spec": {
            "maxUnavailable": 0 if moved and pods == 1 else 1,
            "selector": {"matchLabels": selector_labels(service, component)},
            # A pod that does not serve must not block the drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
