"""PodDisruptionBudgets, which limit how many pods an eviction may take at once."""

from kvasir_operator.pod_spec import PodSpec
from kvasir_operator.resources.names import Component, Object, metadata, selector_labels, workload_name
from kvasir_operator.resources.release import Release
from kvasir_operator.resources.taints import CORDON_TAINT, tolerates
from kvasir_operator.spec import InferenceService


def disruption_budgets(service: InferenceService, release: Release) -> list[Object]:
    return [
        _budget(
            service,
            "frontend",
            service.frontend.replicas,
            moved=release.reads_nodes and not _stays(service.frontend.pod),
        ),
        _budget(
            service,
            "engine",
            service.engine.data_parallel_size,
            moved=release.reads_nodes and _moves_engines(service) and not _stays(service.engine.pod),
            alone=service.engine.nodes == 1,
        ),
    ]


def _stays(pod: PodSpec) -> bool:
    # the operator leaves it, as its successor might return to the node
    return any(tolerates(toleration, CORDON_TAINT) for toleration in pod.tolerations)


def _moves_engines(service: InferenceService) -> bool:
    engine = service.engine
    return service.rollout.max_surge > 0 or (engine.nodes > 1 and engine.data_parallel_size > 1)


def _budget(
    service: InferenceService, component: Component, units: int, *, moved: bool, alone: bool = True
) -> Object:
    """Return a budget of one engine or frontend at a time.

    If the operator moves pods (`moved`), evictions wait for it: for the only unit, and if a pod does not serve
    `alone`, because an eviction would end the requests of its engine.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service, workload_name(service, component), component),
        "spec": {
            "maxUnavailable": 0 if moved and (units == 1 or not alone) else 1,
            "selector": {"matchLabels": selector_labels(service, component)},
            # a pod that does not serve must not block a drain
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
