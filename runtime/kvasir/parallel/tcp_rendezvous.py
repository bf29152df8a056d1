"""How ranks in several pods meet: through a TCP store that rank 0 serves. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the ranks of the engine may reach the port."""

    host: str
    port: int
    interface: str
    """The interface of this rank with which it reaches the others."""
    incarnation: str
    """Of the engine: a rank of another one that reaches the port does not meet these ranks."""
    listener: int | None = None
    """The listening socket's descriptor, on the rank that serves the store."""
