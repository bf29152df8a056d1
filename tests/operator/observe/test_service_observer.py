from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedAdapters, StatusReport
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    NODE,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
)
from kvasir_operator.observe.cordons import LIST_SECONDS, Cordons
from kvasir_operator.observe.observed import Observed, Ownership
from kvasir_operator.observe.pod_events import (
    EVENT_MARGIN_SECONDS,
    MAX_PODS_ASKED,
    MAX_SCALE_UP_SECONDS,
    OVERDUE_SECONDS,
)
from kvasir_operator.observe.service_memory import Key, ServiceMemory
from kvasir_operator.observe.service_observer import ServiceObserver
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.spec import parse_service
from mock_cluster import refusal
from mock_operator import MockReports, Operator

CREATING = {"waiting": {"reason": "ContainerCreating"}}


class Looks:
    def __init__(self, operator: Operator) -> None:
        self.cluster, self.clock = operator.cluster, operator.clock
        self.cordons: Cordons[Key] = Cordons(lambda _: None)
        self.cordons.node_changed("node-1", {})
        self.memory = ServiceMemory("uid-1")
        self._observer = ServiceObserver(
            self.cluster, StatusReports(), self.cordons, monotonic=self.clock.monotonic, now=self.clock.now
        )

    async def look(self, after: float = 0.0) -> Observed:
        self.clock.seconds += after
        resource = self.cluster.of(INFERENCE_SERVICE, "demo")
        return await self._observer.observe(resource, parse_service(resource), self.memory)

    def set_pod(self, name: str, ready: bool = False, state: Any = None) -> str:
        pod = self.cluster.of(POD, name)
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready)},
        ]
        pod["status"]["containerStatuses"][0]["state"] = state or {"running": {}}
        return str(pod["metadata"]["uid"])

    def add_event(self, uid: str, reason: str, message: str, seconds_ago: float = 0.0) -> None:
        self.clock.seconds -= seconds_ago
        time = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        self.clock.seconds += seconds_ago
        event = {
            "metadata": {"name": f"event-{len(self.cluster.objects)}", "namespace": "default"},
            "involvedObject": {"uid": uid, "kind": "Pod" if "Scale" in reason or reason == "Nominated" else ""},
            "reason": reason,
            "message": message,
            "lastTimestamp": time,
        }
        self.cluster.put(EVENT, event)


def node(ready: str = "True", unschedulable: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": "node-1"},
        "spec": {"unschedulable": unschedulable},
        "status": {"conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped"}]},
    }


@pytest.fixture
def looks(settled: Operator) -> Looks:
    settled.cluster.put(NODE, node())
    return Looks(settled)


async def test_observer_finds_the_pods_of_the_workloads(looks: Looks) -> None:
    found = await looks.look()
    assert [member.pod.name for member in found.engines] == ["demo-engine-0"]
    assert [member.pod.component for member in found.frontends] == ["frontend"]
    assert all(member.serves for member in (*found.engines, *found.frontends))
    assert found.stateful_set is not None
    assert found.link_secret == looks.cluster.link_secret()


async def test_pods_with_our_labels_and_another_owner_do_not_count(looks: Looks) -> None:
    for name in [*looks.cluster.names(POD)]:
        copy = {**looks.cluster.of(POD, name)}
        copy["metadata"] = {**copy["metadata"], "name": f"{name}9", "ownerReferences": [], "uid": f"uid-{name}9"}
        looks.cluster.put(POD, copy)
    found = await looks.look()
    assert (len(found.engines), len(found.frontends)) == (1, 1)


async def test_frontends_that_end_or_have_ended_do_not_count(looks: Looks) -> None:
    (name,) = [name for name in looks.cluster.names(POD) if "frontend" in name]
    looks.cluster.of(POD, name)["status"]["phase"] = "Failed"
    assert (await looks.look()).frontends == ()
    looks.cluster.of(POD, name)["status"]["phase"] = "Running"
    looks.cluster.of(POD, name)["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert (await looks.look()).frontends == ()


async def test_a_child_without_labels_is_found_by_its_name(looks: Looks) -> None:
    looks.cluster.of(SERVICE, "demo")["metadata"]["labels"] = {}
    found = await looks.look()
    assert found.children[SERVICE, "demo"].ownership is Ownership.OURS


@pytest.mark.parametrize("kind", [STATEFUL_SET, DEPLOYMENT], ids=lambda kind: kind.kind)
async def test_a_foreign_workload_is_not_observed_as_ours(looks: Looks, kind: Any) -> None:
    name = {STATEFUL_SET: "demo-engine", DEPLOYMENT: "demo-frontend"}[kind]
    looks.cluster.of(kind, name)["metadata"]["ownerReferences"] = []
    looks.cluster.of(kind, name)["metadata"]["managedFields"] = []
    found = await looks.look()
    assert (found.stateful_set if kind is STATEFUL_SET else found.deployment) is None
    assert found.children[kind, name].ownership is Ownership.FOREIGN


# ----------------------------------------------------------------------------------------------------------- waits


async def test_a_state_is_timed_from_the_first_look_at_it(looks: Looks) -> None:
    looks.set_pod("demo-engine-0")
    assert (await looks.look()).engines[0].waited == 0
    assert (await looks.look(after=7)).engines[0].waited == 7
    looks.set_pod("demo-engine-0", ready=True)
    assert (await looks.look(after=7)).engines[0].waited == 0
    looks.set_pod("demo-engine-0")
    assert (await looks.look(after=7)).engines[0].waited == 0  # the earlier mark is dropped


async def test_a_pod_that_does_not_answer_has_not_reported(looks: Looks) -> None:
    looks.set_pod("demo-engine-0")
    assert not (await looks.look()).engines[0].reported
    looks.set_pod("demo-engine-0", ready=True)
    uid = (await looks.look()).engines[0].pod.uid
    adapters = ReportedAdapters("list", 1)
    looks.memory.reports = {uid: StatusReport(Phase.READY, adapters=adapters)}
    found = (await looks.look()).engines[0]
    assert found.reported
    assert found.report is None  # that report is an earlier one
    assert found.adapters == adapters


async def test_a_report_of_this_pass_is_passed_on(looks: Looks) -> None:
    looks._observer._reports = MockReports()
    (frontend,) = (await looks.look()).frontends
    assert frontend.report is not None
    assert frontend.report.phase is Phase.READY


async def test_terminating_frontends_are_counted(looks: Looks) -> None:
    assert (await looks.look()).leaving_frontends == ()
    for name in looks.cluster.names(POD):
        looks.cluster.of(POD, name)["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    found = await looks.look()
    assert (len(found.leaving_frontends), found.frontends) == (1, ())


async def test_a_wait_ends_with_the_pod(looks: Looks) -> None:
    await looks.look()
    looks.cluster.of(POD, "demo-engine-0")["metadata"]["uid"] = "uid-successor"
    assert (await looks.look(after=60)).engines[0].waited == 0
    assert not [mark for mark in looks.memory.first_seen if mark[0] not in ("uid-successor", *uids(looks))]


def uids(looks: Looks) -> set[str]:
    return {looks.cluster.of(POD, name)["metadata"]["uid"] for name in looks.cluster.names(POD)}


# ---------------------------------------------------------------------------------------------------------- Events


async def test_volumes_are_looked_for_once_a_pod_is_overdue(looks: Looks) -> None:
    uid = looks.set_pod("demo-engine-0", state=CREATING)
    looks.add_event(uid, "FailedMount", 'secret "absent" not found')
    await looks.look()
    await looks.look(after=OVERDUE_SECONDS - 0.1)
    assert looks.cluster.calls["list", "Event"] == 0
    found = await looks.look(after=0.1)
    assert found.engines[0].state.reason is Reason.VOLUME_FAILED
    assert 'secret "absent" not found' in found.engines[0].state.message


async def test_the_last_event_about_volumes_is_shown(looks: Looks) -> None:
    uid = looks.set_pod("demo-engine-0", state=CREATING)
    looks.add_event(uid, "FailedMount", "new")
    looks.add_event(uid, "FailedAttachVolume", "old", seconds_ago=60)
    looks.add_event(uid, "Pulled", "image is there")
    looks.add_event("uid-of-another", "FailedMount", "of another")
    await looks.look()
    found = await looks.look(after=OVERDUE_SECONDS)
    assert found.engines[0].state.message.startswith("a volume cannot be mounted (new)")


async def test_a_container_that_starts_ends_the_wait_for_volumes(looks: Looks) -> None:
    uid = looks.set_pod("demo-engine-0", state=CREATING)
    looks.add_event(uid, "FailedMount", "absent")
    await looks.look()
    await looks.look(after=OVERDUE_SECONDS)
    looks.set_pod("demo-engine-0")
    assert (await looks.look(after=1)).engines[0].state.reason is Reason.LOADING


async def test_events_of_a_few_pods_are_read_in_a_pass(looks: Looks) -> None:
    looks.cluster.change_service(engine={"dataParallelSize": 12})
    looks.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["replicas"] = 12
    looks.cluster.run_controllers()
    for rank in range(12):
        looks.set_pod(f"demo-engine-{rank}", state=CREATING)
    await looks.look()
    await looks.look(after=OVERDUE_SECONDS)
    assert looks.cluster.calls["list", "Event"] == MAX_PODS_ASKED


@pytest.mark.parametrize(
    ("seconds_ago", "known"), [(EVENT_MARGIN_SECONDS - 1, True), (EVENT_MARGIN_SECONDS + 2, False)]
)
async def test_an_old_event_does_not_explain_a_missing_pod(looks: Looks, seconds_ago: float, known: bool) -> None:
    looks.cluster.remove(POD, "demo-engine-0")
    uid = looks.cluster.of(STATEFUL_SET, "demo-engine")["metadata"]["uid"]
    message = "create Pod demo-engine-0 in StatefulSet demo-engine failed error: exceeded quota"
    looks.add_event(uid, "FailedCreate", message, seconds_ago)
    await looks.look()
    found = await looks.look(after=OVERDUE_SECONDS)
    assert found.not_created == ({0: "exceeded quota"} if known else {})


async def test_events_that_may_not_be_read_are_done_without(looks: Looks) -> None:
    looks.cluster.refused["list", EVENT] = refusal(403)
    looks.set_pod("demo-engine-0", state=CREATING)
    await looks.look()
    found = await looks.look(after=OVERDUE_SECONDS)
    assert found.engines[0].state.reason is Reason.LOADING


# ----------------------------------------------------------------------------------------------------------- nodes


@pytest.mark.parametrize(
    ("ready", "reason"), [("True", Reason.LOADING), ("Unknown", Reason.NODE_LOST), (None, Reason.NODE_LOST)]
)
async def test_the_node_of_an_unready_pod_is_read(looks: Looks, ready: str | None, reason: Reason) -> None:
    if ready is None:
        looks.cluster.remove(NODE, "node-1", namespace="")
    else:
        looks.cluster.put(NODE, node(ready))
    looks.set_pod("demo-engine-0")
    found = await looks.look()
    assert found.engines[0].state.reason is reason
    assert looks.cluster.calls["get", "Node"] == 1


async def test_nodes_of_ready_pods_are_not_read(looks: Looks) -> None:
    await looks.look()
    assert looks.cluster.calls["get", "Node"] == 0


async def test_nodes_that_may_not_be_read_are_done_without(looks: Looks) -> None:
    looks.cluster.refused["get", NODE] = refusal(403)
    looks.set_pod("demo-engine-0")
    looks.cordons.node_changed("node-1", node(unschedulable=True))
    found = await looks.look()
    assert found.engines[0].state.reason is Reason.LOADING
    assert found.cordoned == frozenset()


@pytest.mark.parametrize("readable", [True, False])
async def test_unnamed_taints_of_the_scheduler_are_looked_up(looks: Looks, readable: bool) -> None:
    """All nodes are listed for this, so seldom."""
    tainted = node()
    tainted["spec"]["taints"] = [{"key": "pool", "value": "db", "effect": "NoSchedule"}]
    tainted["status"]["allocatable"] = {"nvidia.com/gpu": "1"}
    looks.cluster.put(NODE, tainted)
    if not readable:
        looks.cluster.refused["list", NODE] = refusal(403)
    pod = looks.cluster.of(POD, "demo-engine-0")
    message = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    for _ in range(2):
        state = (await looks.look(LIST_SECONDS / 4)).engines[0].state
        assert state.reason is Reason.UNSCHEDULABLE
        assert ("untolerated taint {pool: db}" in state.message) is readable
    assert looks.cluster.calls["list", "Node"] == (1 if readable else 2)
    await looks.look(LIST_SECONDS)
    assert looks.cluster.calls["list", "Node"] == (2 if readable else 3)


@pytest.mark.parametrize(("unschedulable", "cordoned"), [(True, {"node-1"}), (False, set())])
async def test_a_cordon_is_read_before_it_counts(looks: Looks, unschedulable: bool, cordoned: set[str]) -> None:
    looks.cluster.put(NODE, node(unschedulable=unschedulable))
    looks.cordons.node_changed("node-1", node(unschedulable=True))
    assert (await looks.look()).cordoned == cordoned
    looks.cordons.node_changed("node-2", node(unschedulable=True))
    await looks.look()
    assert looks.cluster.calls["get", "Node"] == 2


async def test_a_node_that_no_watch_has_reported_is_read(looks: Looks) -> None:
    """An operator that has just started would otherwise end a drain, and begin it again."""
    looks.cluster.put(NODE, node(unschedulable=True))
    looks.cordons.node_changed("node-1", None)
    assert (await looks.look()).cordoned == {"node-1"}


async def test_an_unreadable_node_stays_drained(looks: Looks) -> None:
    """Otherwise one late answer would remove the rank that replaces the one on the node."""
    looks.cluster.put(NODE, node(unschedulable=True))
    looks.cordons.node_changed("node-1", node(unschedulable=True))
    for status in (0, 429, 500):
        looks.cluster.refused["get", NODE] = refusal(status)
        assert (await looks.look()).cordoned == {"node-1"}


async def test_a_tolerant_pod_does_not_leave_a_drained_node(looks: Looks) -> None:
    looks.cluster.put(NODE, node(unschedulable=True))
    looks.cordons.node_changed("node-1", node(unschedulable=True))
    looks.cluster.of(POD, "demo-engine-0")["spec"]["tolerations"] = [{"operator": "Exists"}]
    found = await looks.look()
    assert [member.pod.leaves(found.cordoned) for member in (*found.engines, *found.frontends)] == [False, True]


async def test_a_frontend_without_a_report_is_timed(looks: Looks) -> None:
    """`StatusReports` reaches no pod here. One whose container does not run is not expected to report."""
    (name,) = [name for name in looks.cluster.names(POD) if "frontend" in name]
    assert [member.unreached for member in (await looks.look()).frontends] == [0.0]
    found = await looks.look(after=40)
    assert [member.unreached for member in (*found.frontends, *found.engines)] == [40.0, None]
    looks.set_pod(name, state=CREATING)
    assert (await looks.look()).frontends[0].unreached is None
    looks.set_pod(name)
    assert (await looks.look(after=5)).frontends[0].unreached == 0.0


# --------------------------------------------------------------------------------------------------- scale-ups


@pytest.fixture
def pending(looks: Looks) -> Looks:
    engine = looks.cluster.of(POD, "demo-engine-0")
    engine["spec"].pop("nodeName")
    engine["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1"}]}
    return looks


@pytest.mark.parametrize("reason", ["TriggeredScaleUp", "Nominated"])
async def test_an_event_of_an_autoscaler_is_seen(pending: Looks, reason: str) -> None:
    uid = pending.cluster.of(POD, "demo-engine-0")["metadata"]["uid"]
    pending.add_event(uid, reason, "pool 0->1")
    pending.add_event("uid-of-another", reason, "other pool")
    await pending.look()
    assert pending.cluster.calls["list", "Event"] == 0
    state = (await pending.look(after=OVERDUE_SECONDS)).engines[0].state
    assert (state.reason, "pool 0->1" in state.message) == (Reason.WAITING_FOR_NODE, True)
    state = (await pending.look(after=MAX_SCALE_UP_SECONDS)).engines[0].state
    assert state.reason is Reason.UNSCHEDULABLE


async def test_a_scale_up_that_was_given_up_does_not_count(pending: Looks) -> None:
    uid = pending.cluster.of(POD, "demo-engine-0")["metadata"]["uid"]
    pending.add_event(uid, "TriggeredScaleUp", "pool 0->1", seconds_ago=60)
    pending.add_event(uid, "NotTriggerScaleUp", "1 in backoff after failed scale-up", seconds_ago=30)
    await pending.look()
    assert (await pending.look(after=OVERDUE_SECONDS)).engines[0].state.reason is Reason.UNSCHEDULABLE


# --------------------------------------------------------------------------------------------------------- Secrets


async def test_whether_a_secret_exists_is_asked_without_reading(looks: Looks) -> None:
    found = await looks.look()
    assert found.link_secret_exists is True
    assert looks.cluster.calls["get", "Secret"] + looks.cluster.calls["list", "Secret"] == 0
    assert looks.cluster.names(SECRET) == [looks.cluster.link_secret()]


@pytest.mark.parametrize("status", [403, 500, 0])
async def test_a_secret_that_cannot_be_asked_for_is_unknown(looks: Looks, status: int) -> None:
    looks.cluster.refused["create-dry", SECRET] = refusal(status)
    assert (await looks.look()).link_secret_exists is None


async def test_a_pending_pod_names_the_gpus_of_its_workers(operator: Operator) -> None:
    operator.cluster.add_service(engine={"tensorParallelSize": 4})
    await operator.settle()
    looks = Looks(operator)
    pod = operator.cluster.of(POD, "demo-engine-0")
    pod["spec"].pop("nodeName")
    why = "3 Insufficient nvidia.com/gpu."
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": why}]}
    states = {member.pod.name: member.state.message for member in (await looks.look()).engines}
    assert states["demo-engine-0"].startswith("no node has 4 free nvidia.com/gpu")
