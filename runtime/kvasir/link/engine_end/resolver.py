"""Looks up the names in link addresses, over and over, off the link's thread.

The headless Service of the frontends is a name with one record per frontend; frontends come and go while an engine
lives. Used by EngineLink.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kvasir.link.address import LinkAddress
from kvasir.link.sockets import SeldomLog

LOOKUP_INTERVAL: Final = 3.0
"""Seconds between look-ups: a new frontend has every engine after at most this."""

log = logging.getLogger(__name__)


def lookup(name: str) -> frozenset[str]:
    """The addresses of a name, empty where it has none. Raises OSError when that cannot be said now.

    IPv4 if there is any: in a dual-stack cluster a pod has a record of each kind, and one frontend must not be
    connected to twice.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return frozenset()
        raise
    ipv4 = frozenset(str(address[0]) for family, *_, address in found if family == socket.AF_INET)
    return ipv4 or frozenset(str(address[0]) for family, *_, address in found if family == socket.AF_INET6)


class Resolver:
    """A thread that reports the addresses of each name, when they change."""

    def __init__(
        self,
        addresses: Iterable[LinkAddress],
        report: Callable[[LinkAddress, frozenset[str]], None],
        lookup: Callable[[str], frozenset[str]] = lookup,
        interval: float = LOOKUP_INTERVAL,
    ) -> None:
        """`report` is called in the resolver's thread."""
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
        """Does not wait: a look-up can take long, and nothing depends on its end."""
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
            self._seldom.warning(f"{address.text}: looking up {address.host} failed: {error}; it is tried again")
            return  # a name server that fails says nothing about the frontends: keep what is known
        if not found:
            self._seldom.warning(f"{address.text}: {address.host} has no address yet; it is tried again")
        if found != self._known.get(address) and not self._stopped.is_set():
            self._known[address] = found
            self._report(address, found)
