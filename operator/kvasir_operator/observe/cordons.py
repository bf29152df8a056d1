"""Which nodes are cordoned, and which services have pods there: kept by a watch, so that it costs no requests.

`kubectl drain` cordons a node before it evicts pods. A cordon triggers a reconcile of the services that have pods
on the node; the observer then reads the node itself.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


class Cordons(Generic[KeyT]):
    def __init__(self, put: Callable[[KeyT], None]) -> None:
        """`put`: called with the key of each service that a change of a node concerns."""
        self._put = put
        self._cordoned: set[str] = set()
        self._nodes: dict[KeyT, frozenset[str]] = {}

    def node_changed(self, name: str, *, cordoned: bool) -> None:
        if cordoned == (name in self._cordoned):
            return
        if cordoned:
            self._cordoned.add(name)
        else:
            self._cordoned.discard(name)
        for key in [key for key, nodes in self._nodes.items() if name in nodes]:
            self._put(key)

    def among(self, key: KeyT, nodes: Iterable[str]) -> frozenset[str]:
        """Return the cordoned ones of the nodes, and remember that this service has pods on all of them."""
        self._nodes[key] = frozenset(nodes)
        return self._nodes[key] & self._cordoned

    def forget(self, key: KeyT) -> None:
        self._nodes.pop(key, None)
