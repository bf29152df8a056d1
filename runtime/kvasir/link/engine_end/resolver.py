"""Looks up names in a thread. A headless Service has one record per frontend."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import LinkAddress, look_up

LOOKUP_INTERVAL: Final = 3.0  # seconds

log = logging.getLogger(__name__)


class Resolver:
    def __init__(
        self,
        addresses: Iterable[LinkAddress],
        report: Callable[[LinkAddress, frozenset[str]], None],
        lookup: Callable[[str], frozenset[str]] = look_up,
        interval: float = LOOKUP_INTERVAL,
    ) -> None:
        # `report` is called in the resolver's thread, for each change.
        self._addresses = list(addresses)
        self._report = report
        self._lookup = lookup
        self._interval = interval
        self._known: dict[LinkAddress, frozenset[str]] = {}
        self._stopped = threading.Event()
        self._seldom = SeldomLog(log)
        self._thread = threading.Thread(target=self._run, name="link-resolver", daemon=True)

    def start(self) -> None:
        if self._addresses:
            self._thread.start()

    def stop(self) -> None:
        """Stop without waiting: a look-up can take long."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for address in self._addresses:
                self._look_up(address)
            self._stopped.wait(self._interval)

    def _look_up(self, address: LinkAddress) -> None:
        try:
            found = self._lookup(address.host)
        except OSError as error:
            self._seldom.warning(
                f"{address.text}: looking up {address.host} failed: {error}; another attempt follows"
            )
            return  # the name server fails: keep the known addresses
        if not found:
            self._seldom.warning(f"{address.text}: {address.host} has no address yet; another attempt follows")
        if found != self._known.get(address) and not self._stopped.is_set():
            self._known[address] = found
            self._report(address, found)
