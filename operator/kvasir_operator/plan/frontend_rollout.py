"""The roll-out of the frontends: the Deployment's own, and the move of frontends off a node that is being
drained."""

from dataclasses import dataclass

from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.plan.words import count
from kvasir_operator.spec import InferenceService


@dataclass(frozen=True)
class FrontendRollout:
    replicas: int
    """Of the Deployment."""
    deletions: tuple[PodDeletion, ...] = ()
    under_way: str = ""


def roll_frontends(service: InferenceService, observed: Observed) -> FrontendRollout:
    """One more frontend is started while some are on a cordoned node; these are deleted one by one as others
    serve."""
    desired, deployment = service.frontend.replicas, observed.deployment
    leaving = [member for member in observed.frontends if member.pod.node in observed.cordoned]
    if deployment is None:
        return FrontendRollout(desired)
    if not leaving:
        return FrontendRollout(desired, (), _under_way(observed, desired))
    serving = sum(member.serves for member in observed.frontends)
    in_order = sorted(leaving, key=lambda member: (member.serves, member.pod.name))
    first = in_order[0]
    may_go = not first.serves or serving > desired
    why = f"pod {first.pod.name} is on node {first.pod.node}, which is being drained"
    verb = "is" if len(leaving) == 1 else "are"
    words = f"{count(len(leaving), 'frontend pod')} {verb} on a node that is being drained"
    return FrontendRollout(
        replicas=desired + 1,
        deletions=(PodDeletion(first.pod, "Replacing", why),) if may_go and deployment.is_observed else (),
        under_way="; ".join(filter(None, (_under_way(observed, desired + 1), words))),
    )


def _under_way(observed: Observed, desired: int) -> str:
    deployment = observed.deployment
    if deployment is None:
        return ""
    if not deployment.is_observed:
        return "the Deployment of the frontends has a new spec that its controller has not seen yet"
    old = deployment.pods - deployment.updated
    if old > 0:
        return f"{count(old, 'frontend pod')} {'runs' if old == 1 else 'run'} an old template"
    surplus = deployment.pods - desired
    if surplus > 0:
        return f"{count(surplus, 'frontend pod')} {'is' if surplus == 1 else 'are'} leaving"
    return ""
