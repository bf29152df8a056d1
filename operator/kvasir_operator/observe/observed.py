"""The immutable facts from which a plan is made."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedAdapters, StatusReport
from kvasir_operator.autoscaler.load_history import LoadHistory
from kvasir_operator.cluster.kinds import Kind

Object = dict[str, Any]
ChildKey = tuple[Kind, str]  # kind and name


class Ownership(Enum):
    OURS = "ours"  # our service is its controller
    ORPHAN = "orphan"  # without a controller, but applied by us for a service of this name
    FOREIGN = "foreign"


@dataclass(frozen=True)
class ChildObject:
    """An object with the name of a child or the labels of children."""

    object: Object
    ownership: Ownership
    terminating: bool  # or its owner is

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


@dataclass(frozen=True)
class WorkloadState:
    uid: str
    replicas: int
    is_observed: bool  # otherwise the status describes an older spec
    revision: str  # of a StatefulSet; "" if not known yet
    pods: int
    updated: int  # with the newest template
    failure: str
    applies_replicas: bool = True  # False if an autoscaler set `replicas`
    ranks: int | None = None  # of engines scaled by load


@dataclass(frozen=True)
class Ended:
    code: int
    out_of_memory: bool
    message: str


@dataclass(frozen=True)
class Container:
    image: str
    state: str  # running, waiting or terminated; "" before the first status
    waiting_reason: str
    waiting_message: str
    ended: Ended | None
    ended_before: Ended | None  # of the previous instance
    restarts: int
    name: str = ""
    ready: bool = False


@dataclass(frozen=True)
class Pod:
    name: str
    namespace: str
    uid: str
    component: str
    node: str  # "" until it is scheduled
    ip: str
    addresses: frozenset[str]
    revision: str  # of an engine
    terminating: bool
    ready: bool
    has_ended: bool  # its controller creates another one
    end_message: str
    scheduled: bool | None  # None: not decided
    schedule_message: str
    scheduling_changed: str  # when it was placed or first found no room (RFC 3339), else created
    container: Container
    gates: tuple[str, ...] = ()
    init_containers: tuple[Container, ...] = ()  # added by webhooks
    sidecars: tuple[Container, ...] = ()
    fetch: Container | None = None  # fetches config and tokenizer
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # pods are hashed
    stays: bool = False  # tolerates that its node is drained

    @property
    def ordinal(self) -> int:
        return int(self.name.rpartition("-")[2])

    @property
    def restarts(self) -> int:
        return self.container.restarts + (self.fetch.restarts if self.fetch is not None else 0)

    @property
    def current(self) -> Container:
        # it runs first
        fetch = self.fetch
        if fetch is None or fetch.ready or (fetch.ended is not None and fetch.ended.code == 0):
            return self.container
        return fetch

    def leaves(self, drained: Collection[str]) -> bool:
        return self.node in drained and not self.stays

    @property
    def reference(self) -> Object:
        # exactly this pod
        return {"metadata": {"name": self.name, "namespace": self.namespace, "uid": self.uid}}


@dataclass(frozen=True)
class PodState:
    pod: str
    phase: Phase
    reason: Reason
    message: str = ""
    progress: str = ""
    ready: bool = False
    restarts: int = 0


UNREPORTED_SECONDS: Final = 10.0  # An engine without link reports then counts as connected.


def is_settled(linked: bool | None, waited: float) -> bool:
    """Return whether the frontends are connected to a serving engine."""
    return waited >= UNREPORTED_SECONDS if linked is None else linked


@dataclass(frozen=True)
class Member:
    pod: Pod
    state: PodState
    waited: float  # seconds in the state, as observed
    linked: bool | None = None  # an engine's, by all relevant frontends; None if unknown
    reported: bool = True  # otherwise, a running pod that is not ready counts as Starting
    report: StatusReport | None = None
    adapters: ReportedAdapters | None = None  # of the last report, so that one late answer changes nothing

    unreached: float | None = None  # seconds without reported demand

    @property
    def serves(self) -> bool:
        return self.state.ready and not self.pod.terminating

    @property
    def is_settled(self) -> bool:
        return self.serves and is_settled(self.linked, self.waited)


@dataclass(frozen=True)
class Refusal:
    reason: Reason
    message: str
    namespace_terminating: bool = False
    body: str = ""  # digest
    at: float = 0.0  # monotonic


@dataclass(frozen=True)
class RequestedRanks:
    """The present engine.dataParallelSize."""

    number: int
    manager: str = ""  # that set it through the scale subresource

    @property
    def is_autoscaler(self) -> bool:
        return self.manager == "kube-controller-manager"


@dataclass(frozen=True)
class Observed:
    generation: int
    asked_release: str  # by the annotation; "" if none
    children: Mapping[ChildKey, ChildObject] = field(default_factory=dict)
    stateful_set: WorkloadState | None = None  # None also if it is not ours
    deployment: WorkloadState | None = None
    engines: tuple[Member, ...] = ()
    frontends: tuple[Member, ...] = ()
    fetches: tuple[Member, ...] = ()  # pods of Jobs that fill the cache
    claim_failure: str = ""  # why the cache's claim gets no volume
    job_failure: str = ""  # why its Job gets no pod
    leaving_frontends: tuple[tuple[Pod, StatusReport | None], ...] = ()  # may still have requests
    not_created: Mapping[int, str] = field(default_factory=dict)  # cause by ordinal
    missing: Mapping[int, float] = field(default_factory=dict)  # seconds without a pod, by ordinal
    link_secret: str = ""  # "" before there is one
    link_secret_exists: bool | None = None
    missing_key_secrets: frozenset[str] = frozenset()  # fields that name a missing Secret
    cordoned: frozenset[str] = frozenset()  # drained nodes that pods should leave
    refusals: Mapping[ChildKey, Refusal] = field(default_factory=dict)
    missing_kinds: frozenset[Kind] = frozenset()  # without a CustomResourceDefinition
    unchanged: Mapping[str, str] = field(default_factory=dict)  # digest of the last apply, by UID
    now: float = 0.0  # monotonic
    may_upgrade: bool = False  # for an automatic upgrade
    load: LoadHistory = field(default_factory=LoadHistory)
    requested: RequestedRanks | None = None

    @property
    def namespace_terminating(self) -> bool:
        return any(refusal.namespace_terminating for refusal in self.refusals.values())

    def with_changes(self, **changes: Any) -> "Observed":
        return replace(self, **changes)
