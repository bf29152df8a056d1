"""How ranks in several pods find each other: through a TCP store that rank 0 serves. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the ranks of the engine may reach the port."""

    host: str
    """IP address of the store."""
    port: int
    interface: str
    """The network interface of this rank with which it reaches the others."""
    incarnation: str
    """Of the engine: a rank of another one that reaches the port does not meet these ranks."""
    listener: int | None = None
    """The descriptor of the socket that listens on the port; only the rank that serves the store has it."""
