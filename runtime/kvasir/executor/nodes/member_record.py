import time
from dataclasses import dataclass, field


@dataclass
class MemberRecord:
    """One connection of a member; only the leader's thread changes it."""

    identity: bytes  # of the connection: a member that connects again has another one
    node_rank: int
    address: str  # the member's IP address
    leader_address: str  # the IP address that the member has connected to
    prepared: bool = False
    has_failed: bool = False  # it has reported the failure of a worker, so its end is expected
    last_seen: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.address})"
