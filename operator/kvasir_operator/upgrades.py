"""The fleet-wide limit of upgrades: how many services take a new release of the operator by themselves at a
time."""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from kvasir_contract.reasons import Reason
from kvasir_operator.plan.service_status import condition

KeyT = TypeVar("KeyT", bound=Hashable)


class Upgrades(Generic[KeyT]):
    """Places for services that are being upgraded; a service whose upgrade fails keeps its place, so the rest
    wait."""

    def __init__(self, most: int) -> None:
        """`most`: services at a time; 0: none upgrades by itself."""
        self._most = most
        self._under_way: set[KeyT] = set()

    @property
    def are_automatic(self) -> bool:
        return self._most > 0

    def take(self, key: KeyT, status: Mapping[str, Any]) -> bool:
        """Return whether this service may be upgraded now. By its `status`, only a healthy one takes a place."""
        if key not in self._under_way and (len(self._under_way) >= self._most or not _is_settled(status)):
            return False
        self._under_way.add(key)
        return True

    def settle(self, key: KeyT, status: Mapping[str, Any]) -> None:
        """Give the place back if everything is as desired."""
        upgrade = condition(status, "UpgradeAvailable").get("status") == "True"
        paused = condition(status, "Progressing").get("reason") == Reason.PAUSED
        if paused or (_is_settled(status) and not upgrade):
            self._under_way.discard(key)

    def forget(self, key: KeyT) -> None:
        self._under_way.discard(key)


def _is_settled(status: Mapping[str, Any]) -> bool:
    return bool(condition(status, "Progressing").get("reason") == Reason.AS_DESIRED)
