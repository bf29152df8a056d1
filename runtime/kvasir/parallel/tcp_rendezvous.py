"""The TCP store of rank 0, where ranks in several pods meet. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the engine's ranks may reach the port."""

    host: str
    port: int
    # This rank's network interface.
    interface: str
    # Different incarnations do not meet.
    incarnation: str
    # The listening socket on rank 0.
    listener: int | None = None
