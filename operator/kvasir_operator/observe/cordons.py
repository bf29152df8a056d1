"""Which nodes are cordoned, and which services have pods on them. A watch maintains this without further requests.

`kubectl drain` cordons a node before it evicts pods. A cordon triggers a reconcile of the services that have pods
on the node, and the observer then reads the node itself.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


class Cordons(Generic[KeyT]):
    def __init__(self, put: Callable[[KeyT], None]) -> None:
        """`put` is called with the key of each service that a change of a node affects."""
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
        """Return the nodes that are cordoned, and remember that this service has pods on all given nodes."""
        self._nodes[key] = frozenset(nodes)
        return self._nodes[key] & self._cordoned

    def forget(self, key: KeyT) -> None:
        self._nodes.pop(key, None)
