"""The facts from which a plan is made: the objects of an InferenceService and the reports of its pods.

Everything is immutable and comes from one pass of reads, plus the API server's answers to earlier requests.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import StatusReport
from kvasir_operator.cluster.kinds import Kind

Object = dict[str, Any]
ChildKey = tuple[Kind, str]
"""Kind and name, in the namespace of the InferenceService."""


class Ownership(Enum):
    OURS = "ours"
    """The InferenceService is its controller."""
    ORPHAN = "orphan"
    """Applied by this operator for a service of this name, and without a controller now."""
    FOREIGN = "foreign"


@dataclass(frozen=True)
class ChildObject:
    """An object that has the name of a child or the labels of children."""

    object: Object
    """The object as the API server returned it."""
    ownership: Ownership
    terminating: bool
    """Whether the object is being deleted, or will be because its owner is."""

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


@dataclass(frozen=True)
class WorkloadState:
    """The StatefulSet of the engines or the Deployment of the frontends."""

    uid: str
    replicas: int
    is_observed: bool
    """Whether the controller has processed the newest spec. Until then, the status describes an older one."""
    revision: str
    """Revision of the StatefulSet's newest template; "" if it is not known yet."""
    pods: int
    updated: int
    """Pods of the newest template."""
    failure: str
    """Why pods of the Deployment cannot be created; "" if they can."""
    applies_replicas: bool = True
    """Whether `replicas` is the value that the operator applied, and not that of an autoscaler."""


@dataclass(frozen=True)
class Ended:
    """How a container terminated."""

    code: int
    out_of_memory: bool
    message: str
    """The termination message."""


@dataclass(frozen=True)
class Container:
    image: str
    state: str
    """running, waiting or terminated; "" before the first status."""
    waiting_reason: str
    waiting_message: str
    ended: Ended | None
    """Set in state terminated."""
    ended_before: Ended | None
    """How the previous instance of the container terminated."""
    restarts: int
    name: str = ""
    ready: bool = False


@dataclass(frozen=True)
class Pod:
    name: str
    namespace: str
    uid: str
    component: str
    node: str
    """"" until the pod is scheduled."""
    ip: str
    addresses: frozenset[str]
    """All of its IP addresses, the first one included."""
    revision: str
    """For engines, the revision of the StatefulSet's template."""
    terminating: bool
    ready: bool
    has_ended: bool
    """Whether the pod failed, was evicted or completed. Its controller creates another one."""
    end_message: str
    scheduled: bool | None
    """None before the scheduler has decided."""
    schedule_message: str
    scheduling_changed: str
    """When the scheduler placed the pod or first found no room for it (RFC 3339); before that, its creation."""
    container: Container
    gates: tuple[str, ...] = ()
    """Scheduling gates, until which the scheduler ignores the pod."""
    init_containers: tuple[Container, ...] = ()
    """Containers that others have added, such as webhooks; the same applies to `sidecars`."""
    sidecars: tuple[Container, ...] = ()
    fetch: Container | None = None
    """The init container that fetches config and tokenizer; None without one."""
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # demand polls keep pods in sets
    stays: bool = False
    """Whether the pod tolerates that its node is being drained."""

    @property
    def ordinal(self) -> int:
        """The ordinal of an engine's pod (see `engine_ranks`)."""
        return int(self.name.rpartition("-")[2])

    @property
    def restarts(self) -> int:
        return self.container.restarts + (self.fetch.restarts if self.fetch is not None else 0)

    @property
    def current(self) -> Container:
        """Our container that runs now or next: `fetch` until it has succeeded."""
        fetch = self.fetch
        if fetch is None or fetch.ready or (fetch.ended is not None and fetch.ended.code == 0):
            return self.container
        return fetch

    def leaves(self, drained: Collection[str]) -> bool:
        """Return whether the pod should move, if these nodes are being drained."""
        return self.node in drained and not self.stays

    @property
    def reference(self) -> Object:
        """The metadata that identifies exactly this pod for a deletion."""
        return {"metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid}}


@dataclass(frozen=True)
class PodState:
    """The phase of a pod, and why it is not further."""

    pod: str
    phase: Phase
    reason: Reason
    message: str = ""
    progress: str = ""
    """For example "3.1/15.0 GB"."""
    ready: bool = False
    """Whether the pod serves requests."""
    restarts: int = 0


UNREPORTED_SECONDS: Final = 10.0
"""How long an engine without link reports must be ready until the frontends are assumed to be connected."""


def is_settled(linked: bool | None, waited: float) -> bool:
    """Return whether the frontends are connected to an engine that serves."""
    return waited >= UNREPORTED_SECONDS if linked is None else linked


@dataclass(frozen=True)
class Member:
    """A pod of the service and its state."""

    pod: Pod
    state: PodState
    waited: float
    """Seconds for which this operator has observed the state. Never compared with another machine's clock."""
    linked: bool | None = None
    """For engines, whether every frontend that gets requests, or soon will, has accepted it; None if that is not
    known."""
    reported: bool = True
    """Whether the pod has sent a report. Without one, a running pod that is not ready counts as Starting."""
    report: StatusReport | None = None
    """The report of this pass, never an earlier one; None if the pod did not respond."""

    unreached: float | None = None
    """For frontends that run but do not report their demand, the seconds for which this has been observed."""

    @property
    def serves(self) -> bool:
        return self.state.ready and not self.pod.terminating

    @property
    def is_settled(self) -> bool:
        """Whether the pod serves and the frontends are connected to it, so that another engine may stop."""
        return self.serves and is_settled(self.linked, self.waited)


@dataclass(frozen=True)
class Refusal:
    """An apply or a deletion that the API server did not carry out."""

    reason: Reason
    message: str
    namespace_terminating: bool = False
    body: str = ""
    """Digest of the refused body."""
    at: float = 0.0
    """When it was refused (monotonic)."""


@dataclass(frozen=True)
class Observed:
    generation: int
    """Generation of the InferenceService."""
    asked_release: str
    """The release that its annotation requests; "" if there is none."""
    children: Mapping[ChildKey, ChildObject] = field(default_factory=dict)
    stateful_set: WorkloadState | None = None
    """None if it does not exist or is not ours. The same applies to `deployment`."""
    deployment: WorkloadState | None = None
    engines: tuple[Member, ...] = ()
    frontends: tuple[Member, ...] = ()
    leaving_frontends: tuple[tuple[Pod, StatusReport | None], ...] = ()
    """Terminating frontend pods, which may still have requests, and their reports."""
    not_created: Mapping[int, str] = field(default_factory=dict)
    """By ordinal of an engine's pod, why it cannot be created."""
    missing: Mapping[int, float] = field(default_factory=dict)
    """By ordinal without a pod, the seconds for which this operator has observed it missing."""
    link_secret: str = ""
    """Name of the Secret with the link's keys; "" before there is one."""
    link_secret_exists: bool | None = None
    """None if unknown."""
    missing_key_secrets: frozenset[str] = frozenset()
    """Fields of the frontend that name a Secret with keys that does not exist."""
    cordoned: frozenset[str] = frozenset()
    """Nodes that are being drained, and on which the service has pods that should leave."""
    refusals: Mapping[ChildKey, Refusal] = field(default_factory=dict)
    unchanged: Mapping[str, str] = field(default_factory=dict)
    """By UID of a child, the digest of the last apply (see plan.applies)."""
    now: float = 0.0
    """This process's monotonic clock, for the age of refusals."""
    may_upgrade: bool = False
    """Whether this service has a slot for an automatic upgrade."""

    @property
    def namespace_terminating(self) -> bool:
        return any(refusal.namespace_terminating for refusal in self.refusals.values())

    def with_changes(self, **changes: Any) -> "Observed":
        return replace(self, **changes)
