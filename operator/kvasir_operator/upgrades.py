"""The fleet-wide limit of upgrades: how many services take a new release of the operator by themselves at a
time."""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Upgrades(Generic[KeyT]):
    """Places for services that are being upgraded; a service whose upgrade fails keeps its place, so the rest
    wait."""

    def __init__(self, most: int) -> None:
        """`most`: services at a time; 0: none upgrades by itself."""
        self._most = most
        self._under_way: set[KeyT] = set()

    def take(self, key: KeyT) -> bool:
        """Return whether this service may be upgraded now."""
        if key not in self._under_way and len(self._under_way) >= self._most:
            return False
        self._under_way.add(key)
        return True

    def settle(self, key: KeyT, status: Mapping[str, Any]) -> None:
        """Give the place back if everything is as desired."""
        conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
        settled = conditions.get("Progressing", {}).get("reason") == "AsDesired"
        if settled and conditions.get("UpgradeAvailable", {}).get("status") != "True":
            self._under_way.discard(key)

    def forget(self, key: KeyT) -> None:
        self._under_way.discard(key)
