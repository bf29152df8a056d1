"""The roll-out of the frontends: the Deployment replaces old pods, the operator moves pods off drained nodes."""

from dataclasses import dataclass, replace

from kvasir_operator.observe.observed import Observed, WorkloadState
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.plan.problem import count, verb
from kvasir_operator.spec import InferenceService


@dataclass(frozen=True)
class FrontendRollout:
    replicas: int | None  # None: left to an autoscaler
    deletions: tuple[PodDeletion, ...] = ()
    under_way: str = ""


def with_scaled_frontends(service: InferenceService, deployment: WorkloadState | None) -> InferenceService:
    if not service.frontend.is_autoscaled or deployment is None or deployment.applies_replicas:
        return service
    return replace(service, frontend=replace(service.frontend, replicas=max(1, deployment.replicas)))


def roll_frontends(service: InferenceService, observed: Observed) -> FrontendRollout:
    """Return the next action. While pods are on a drained node, one more runs, and one leaves at a time."""
    desired, deployment = service.frontend.replicas, observed.deployment
    autoscaled = service.frontend.is_autoscaled
    # autoscalers ignore a Deployment with 0 replicas
    steady = desired if not autoscaled or (deployment is not None and deployment.replicas == 0) else None
    surge = 0 if autoscaled and desired > 1 else 1
    leaving = [member for member in observed.frontends if member.pod.leaves(observed.cordoned)]
    if deployment is None:
        return FrontendRollout(steady)
    if not leaving:
        return FrontendRollout(steady, (), _under_way(observed, desired))
    serving = sum(member.serves for member in observed.frontends)
    in_order = sorted(leaving, key=lambda member: (member.serves, member.pod.name))
    first = in_order[0]
    may_go = not first.serves or serving >= desired + surge
    why = f"pod {first.pod.name} is on node {first.pod.node}, which is being drained"
    pods = (
        f"{count(len(leaving), 'frontend pod')} {verb(len(leaving), 'is', 'are')} on a node that is being drained"
    )
    return FrontendRollout(
        replicas=desired + 1 if surge else None,
        deletions=(PodDeletion(first.pod, "Replacing", why),) if may_go and deployment.is_observed else (),
        under_way="; ".join(filter(None, (_under_way(observed, desired + surge), pods))),
    )


def _under_way(observed: Observed, desired: int) -> str:
    deployment = observed.deployment
    if deployment is None:
        return ""
    if not deployment.is_observed and deployment.pods:  # the first pods are loading, not rolled out
        return "the Deployment controller has not processed the new spec of the frontends yet"
    old = deployment.pods - deployment.updated
    if old > 0:
        return f"{count(old, 'frontend pod')} still {verb(old, 'runs', 'run')} the old revision"
    surplus = deployment.pods - desired
    if surplus > 0:
        return f"{count(surplus, 'frontend pod')} {verb(surplus, 'is', 'are')} being removed"
    return ""
