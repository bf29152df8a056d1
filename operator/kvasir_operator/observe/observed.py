"""The facts that a plan is made from: what the cluster has of one InferenceService, and what the pods report.

Everything here is immutable and comes from one pass of reads, plus the API server's answers to earlier applies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import Kind

Object = dict[str, Any]
ChildKey = tuple[Kind, str]
"""Kind and name, in the namespace of the InferenceService."""


class Ownership(Enum):
    OURS = "ours"
    """The InferenceService is its controller."""
    ORPHAN = "orphan"
    """It was applied by this operator for a service of this name, and has no controller now."""
    FOREIGN = "foreign"


@dataclass(frozen=True)
class ChildObject:
    """An object of a child's name, or with the labels of the service's children."""

    object: Object
    """As the API server returned it: for comparison and repair."""
    ownership: Ownership
    terminating: bool

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


@dataclass(frozen=True)
class WorkloadState:
    """The StatefulSet of the engines or the Deployment of the frontends."""

    uid: str
    replicas: int
    is_observed: bool
    """Whether its controller has seen the newest spec: until then its status is about an older one."""
    revision: str
    """StatefulSet: the revision of the newest template; "" if not known yet."""
    pods: int
    updated: int
    """Pods of the newest template."""
    failure: str
    """Deployment: why its pods cannot be created; "" if they can."""


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    code: int
    out_of_memory: bool
    message: str
    """The termination message."""


@dataclass(frozen=True)
class Container:
    image: str
    state: str
    """running, waiting, terminated; "" before the first status."""
    waiting_reason: str
    waiting_message: str
    ended: Ended | None
    """Set in state terminated."""
    ended_before: Ended | None
    """How the container before this one ended."""
    restarts: int


@dataclass(frozen=True)
class Pod:
    name: str
    namespace: str
    uid: str
    component: str
    node: str
    """"" until it is scheduled."""
    ip: str
    revision: str
    """Engines: the revision of the StatefulSet's template."""
    terminating: bool
    ready: bool
    has_ended: bool
    """Evicted, or otherwise over: its controller creates another one."""
    end_message: str
    scheduled: bool | None
    """None before the scheduler has decided."""
    schedule_message: str
    container: Container

    @property
    def rank(self) -> int:
        """The data-parallel rank of an engine's pod: its ordinal."""
        return int(self.name.rpartition("-")[2])

    @property
    def reference(self) -> Object:
        """Exactly this pod, for a deletion."""
        return {"metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid}}


@dataclass(frozen=True)
class PodState:
    """How far a pod is, and why it is not further."""

    pod: str
    phase: Phase
    reason: Reason
    message: str = ""
    progress: str = ""
    """As 3.1/15.0 GB."""
    ready: bool = False
    """Whether it serves."""
    restarts: int = 0


UNREPORTED_SECONDS: Final = 10.0
"""How long an engine that reports nothing must be ready before the frontends are taken to know it."""


@dataclass(frozen=True)
class Member:
    """A pod of the service and its state."""

    pod: Pod
    state: PodState
    waited: float
    """Seconds for which this operator has seen it in this state. Never compared with another machine's clock."""
    linked: bool | None = None
    """Engines: whether every ready frontend has accepted it. None: it does not report that."""

    @property
    def serves(self) -> bool:
        return self.state.ready and not self.pod.terminating

    @property
    def is_settled(self) -> bool:
        """Whether it serves and the frontends know it, so that another engine may go."""
        return self.serves and (self.waited >= UNREPORTED_SECONDS if self.linked is None else self.linked)


@dataclass(frozen=True)
class Refusal:
    """The API server's answer to an apply or a deletion that it did not carry out."""

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
    """Of the InferenceService."""
    asked_release: str
    """The release that its annotation asks for; "" if none."""
    children: Mapping[ChildKey, ChildObject] = field(default_factory=dict)
    stateful_set: WorkloadState | None = None
    """None if it does not exist or is not ours; so is `deployment`."""
    deployment: WorkloadState | None = None
    engines: tuple[Member, ...] = ()
    frontends: tuple[Member, ...] = ()
    not_created: Mapping[int, str] = field(default_factory=dict)
    """By rank, why its pod cannot be created."""
    missing: Mapping[int, float] = field(default_factory=dict)
    """By rank without a pod, for how many seconds this operator has seen it missing."""
    link_secret: str = ""
    """Name of the Secret with the link's keys; "" before there is one."""
    link_secret_exists: bool | None = None
    """None: not known."""
    api_keys_exist: bool | None = None
    cordoned: frozenset[str] = frozenset()
    """Nodes of the pods that take no new ones: they are being drained."""
    refusals: Mapping[ChildKey, Refusal] = field(default_factory=dict)
    unchanged: Mapping[str, str] = field(default_factory=dict)
    """By UID of a child, the digest of the last apply (see plan.applies)."""
    now: float = 0.0
    """This process's clock (monotonic): for the age of refusals."""
    may_upgrade: bool = False
    """Whether this service has one of the fleet's places for upgrades."""

    @property
    def namespace_terminating(self) -> bool:
        return any(refusal.namespace_terminating for refusal in self.refusals.values())

    def with_changes(self, **changes: Any) -> "Observed":
        return replace(self, **changes)
