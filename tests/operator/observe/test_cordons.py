"""Cordons find the services that they affect without a request."""

from typing import Any

import pytest

from kvasir_operator.observe.cordons import Cordons, stays
from kvasir_operator.observe.objects import DRAIN_TAINTS
from kvasir_operator.resources.taints import CORDON_TAINT
from operator_facts import pod

CORDONED = {"spec": {"unschedulable": True}}


def made() -> tuple[Cordons[str], list[str]]:
    concerned: list[str] = []
    cordons = Cordons(concerned.append)
    for name in ("n1", "n2", "n3"):
        cordons.node_changed(name, {})
    return cordons, concerned


def test_a_node_that_the_watch_has_not_reported_may_be_drained() -> None:
    cordons: Cordons[str] = Cordons(lambda _: None)
    cordons.node_changed("n1", {})
    assert cordons.among("one", ["n1", "n2"]) == {"n2": []}
    cordons.node_changed("n2", {})
    assert cordons.among("one", ["n1", "n2"]) == {}
    cordons.node_changed("n1", None)
    assert cordons.among("one", ["n1", "n2"]) == {"n1": []}


def test_a_cordon_concerns_the_services_with_pods_there() -> None:
    cordons, concerned = made()
    assert cordons.among("one", ["n1", "n2"]) == {}
    assert cordons.among("two", ["n2"]) == {}
    assert cordons.among("three", ["n3"]) == {}
    cordons.node_changed("n2", CORDONED)
    assert concerned == ["one", "two"]
    assert cordons.among("one", ["n1", "n2"]) == {"n2": [CORDON_TAINT]}
    assert cordons.among("three", ["n3"]) == {}


def test_every_heartbeat_of_a_node_is_not_a_change() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    for cordoned in (False, True, True, False, False):
        cordons.node_changed("n1", CORDONED if cordoned else {})
    assert concerned == ["one", "one"]
    assert cordons.among("one", ["n1"]) == {}


def test_a_further_taint_of_a_drained_node_is_a_change() -> None:
    """A pod may tolerate the first one only."""
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    tainted = {"spec": {"taints": [taint(DRAIN_TAINTS[0])]}}
    cordons.node_changed("n1", tainted)
    cordons.node_changed("n1", {"spec": {**tainted["spec"], "unschedulable": True}})
    cordons.node_changed("n1", {})
    assert concerned == ["one"] * 3
    assert cordons.among("one", ["n1"]) == {}


def test_a_service_is_concerned_by_its_latest_nodes_only() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    cordons.among("one", ["n2"])
    cordons.node_changed("n1", CORDONED)
    assert concerned == []


def test_a_cordon_from_before_is_known_to_new_services() -> None:
    cordons, concerned = made()
    cordons.node_changed("n1", CORDONED)
    assert cordons.among("one", iter(["n1"])) == {"n1": [CORDON_TAINT]}
    assert concerned == []


def test_a_forgotten_service_is_not_concerned() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    cordons.forget("one")
    cordons.forget("unknown")
    cordons.node_changed("n1", CORDONED)
    assert concerned == []


def test_a_service_may_be_forgotten_by_its_own_reconcile() -> None:
    """`put` may call `forget` or `among` during the loop over the services."""
    cordons: Cordons[str] = Cordons(lambda key: cordons.forget(key))
    for key in ("one", "two"):
        cordons.among(key, ["n1"])
    cordons.node_changed("n1", CORDONED)
    assert cordons.among("one", ["n1"]) == {"n1": [CORDON_TAINT]}


def taint(key: str, effect: str = "NoSchedule") -> dict[str, Any]:
    return {"key": key, "effect": effect}


@pytest.mark.parametrize("key", DRAIN_TAINTS)
def test_taints_of_autoscalers_drain_a_node(key: str) -> None:
    cordons, _ = made()
    assert cordons.drains({"spec": {"taints": [taint(key)]}}) == [taint(key)]
    assert cordons.drains({"spec": {"taints": [taint(key, "NoExecute")]}})
    assert not cordons.drains({"spec": {"taints": [taint(key, "PreferNoSchedule")]}})


def test_a_cordon_drains_a_node_and_other_taints_do_not() -> None:
    cordons, _ = made()
    assert cordons.drains({"spec": {"unschedulable": True}})
    for spec in (
        {},
        {"taints": None},
        {"taints": [taint("nvidia.com/gpu"), taint("node.kubernetes.io/not-ready")]},
    ):
        assert not cordons.drains({"spec": spec})
    assert not cordons.drains({})


def test_the_settings_choose_the_taints_of_a_drain() -> None:
    cordons: Cordons[str] = Cordons(lambda _: None, ["example.com/leaving"])
    assert cordons.drains({"spec": {"taints": [taint("example.com/leaving")]}})
    assert not cordons.drains({"spec": {"taints": [taint("karpenter.sh/disrupted")]}})


@pytest.mark.parametrize(
    ("toleration", "kept"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "karpenter.sh/disrupted", "operator": "Exists"}, True),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, True),
        ({"key": "karpenter.sh/disrupted", "value": "other"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_a_pod_that_tolerates_the_drain_stays(toleration: dict[str, str], kept: bool) -> None:
    """Its successor could be placed on the same node, and would move again and again."""
    tolerant = pod("demo-engine-0", tolerations=(toleration,))
    assert stays(tolerant, [taint("karpenter.sh/disrupted")]) is kept
    assert not stays(tolerant, [taint("karpenter.sh/disrupted"), taint("other")]) or "key" not in toleration
