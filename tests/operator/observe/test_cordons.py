"""Cordons find the services that they affect without a request."""

from kvasir_operator.observe.cordons import Cordons


def made() -> tuple[Cordons[str], list[str]]:
    concerned: list[str] = []
    return Cordons(concerned.append), concerned


def test_a_cordon_concerns_the_services_with_pods_there() -> None:
    cordons, concerned = made()
    assert cordons.among("one", ["n1", "n2"]) == frozenset()
    assert cordons.among("two", ["n2"]) == frozenset()
    assert cordons.among("three", ["n3"]) == frozenset()
    cordons.node_changed("n2", cordoned=True)
    assert concerned == ["one", "two"]
    assert cordons.among("one", ["n1", "n2"]) == {"n2"}
    assert cordons.among("three", ["n3"]) == frozenset()


def test_every_heartbeat_of_a_node_is_not_a_change() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    for cordoned in (False, True, True, False, False):
        cordons.node_changed("n1", cordoned=cordoned)
    assert concerned == ["one", "one"]
    assert cordons.among("one", ["n1"]) == frozenset()


def test_a_service_is_concerned_by_its_latest_nodes_only() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    cordons.among("one", ["n2"])
    cordons.node_changed("n1", cordoned=True)
    assert concerned == []


def test_a_cordon_from_before_is_known_to_new_services() -> None:
    cordons, concerned = made()
    cordons.node_changed("n1", cordoned=True)
    assert cordons.among("one", iter(["n1"])) == {"n1"}
    assert concerned == []


def test_a_forgotten_service_is_not_concerned() -> None:
    cordons, concerned = made()
    cordons.among("one", ["n1"])
    cordons.forget("one")
    cordons.forget("unknown")
    cordons.node_changed("n1", cordoned=True)
    assert concerned == []


def test_a_service_may_be_forgotten_by_its_own_reconcile() -> None:
    """`put` may call `forget` or `among` during the loop over the services."""
    cordons: Cordons[str] = Cordons(lambda key: cordons.forget(key))
    for key in ("one", "two"):
        cordons.among(key, ["n1"])
    cordons.node_changed("n1", cordoned=True)
    assert cordons.among("one", ["n1"]) == {"n1"}
