"""Rank 0's TCP store, for several pods. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TcpRendezvous:
    """Neither encrypted nor authenticated: only the engine's ranks may reach the port."""

    host: str
    port: int
    interface: str
    # Different incarnations do not meet.
    incarnation: str
    # On rank 0 only.
    listener: int | None = None
