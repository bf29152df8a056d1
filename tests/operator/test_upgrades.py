from typing import Any

from kvasir_operator.upgrades import Upgrades


def status(progressing: str, upgrade: str = "False") -> dict[str, Any]:
    return {
        "conditions": [
            {"type": "Progressing", "status": "False", "reason": progressing},
            {"type": "UpgradeAvailable", "status": upgrade, "reason": "x"},
        ]
    }


DONE = status("AsDesired")


def test_upgrades_are_limited() -> None:
    upgrades = Upgrades[str](2)
    assert [upgrades.take(key, DONE) for key in ("a", "b", "c")] == [True, True, False]
    assert upgrades.take("a", DONE)  # it has its slot
    upgrades.settle("a", DONE)
    assert upgrades.take("c", DONE)
    assert not upgrades.take("a", DONE)


def test_without_places_nothing_is_upgraded() -> None:
    assert not Upgrades[str](0).take("a", DONE)


def test_an_upgrade_that_does_not_settle_keeps_its_place() -> None:
    for unsettled in (
        status("RollingOut"),
        status("CrashLooping"),
        status("AsDesired", "True"),
        {},
    ):
        upgrades = Upgrades[str](1)
        assert upgrades.take("a", DONE)
        upgrades.settle("a", unsettled)
        assert not upgrades.take("b", DONE), unsettled


def test_only_a_healthy_service_gets_a_slot() -> None:
    for unhealthy in (status("CrashLooping"), status("Loading"), {}):
        assert not Upgrades[str](1).take("a", unhealthy)


def test_a_paused_service_releases_its_slot() -> None:
    upgrades = Upgrades[str](1)
    upgrades.take("a", DONE)
    upgrades.settle("a", status("Paused"))
    assert upgrades.take("b", DONE)


def test_a_deleted_service_releases_its_slot() -> None:
    upgrades = Upgrades[str](1)
    upgrades.take("a", DONE)
    upgrades.forget("a")
    assert upgrades.take("b", DONE)


def test_a_service_without_a_slot_releases_none() -> None:
    upgrades = Upgrades[str](1)
    upgrades.take("a", DONE)
    upgrades.settle("b", DONE)
    upgrades.forget("b")
    assert not upgrades.take("b", DONE)
