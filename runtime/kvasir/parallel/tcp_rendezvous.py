"""How ranks in several pods meet: through a TCP store that rank 0 serves. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the ranks of the engine may reach the port."""

    host: str
    port: int
    interface: str
    """The network interface of this rank."""
    incarnation: str
    """A rank of another incarnation does not meet these ranks."""
    listener: int | None = None
    """The listening socket, on the rank that serves the store."""
