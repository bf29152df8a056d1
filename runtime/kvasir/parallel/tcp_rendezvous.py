"""The TCP store of rank 0, where ranks in several pods meet. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the ranks of the engine may reach the port."""

    host: str
    port: int
    # This rank's network interface.
    interface: str
    # Ranks of different incarnations do not meet.
    incarnation: str
    # The listening socket on rank 0.
    listener: int | None = None
