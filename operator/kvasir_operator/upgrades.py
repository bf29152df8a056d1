"""The limit on services that roll out a new release at the same time."""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from kvasir_contract.reasons import Reason
from kvasir_operator.plan.conditions import condition

KeyT = TypeVar("KeyT", bound=Hashable)


class Upgrades(Generic[KeyT]):
    """Slots for automatic upgrades. A service whose upgrade fails keeps its slot."""

    def __init__(self, most: int) -> None:
        """`most` is the number of slots; 0 disables automatic upgrades."""
        self._most = most
        self._under_way: set[KeyT] = set()

    @property
    def are_automatic(self) -> bool:
        return self._most > 0

    def take(self, key: KeyT, status: Mapping[str, Any]) -> bool:
        """Return whether this service may be upgraded now. Only a healthy service gets a slot."""
        if key not in self._under_way and (len(self._under_way) >= self._most or not _is_settled(status)):
            return False
        self._under_way.add(key)
        return True

    def settle(self, key: KeyT, status: Mapping[str, Any]) -> None:
        upgrade = condition(status, "UpgradeAvailable").get("status") == "True"
        paused = condition(status, "Progressing").get("reason") == Reason.PAUSED
        if paused or (_is_settled(status) and not upgrade):
            self._under_way.discard(key)

    def forget(self, key: KeyT) -> None:
        self._under_way.discard(key)


def _is_settled(status: Mapping[str, Any]) -> bool:
    return condition(status, "Progressing").get("reason") in (Reason.AS_DESIRED, Reason.SCALED_TO_ZERO)
