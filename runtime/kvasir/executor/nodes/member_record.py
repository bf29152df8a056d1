"""A member as the leader sees it."""

import time
from dataclasses import dataclass, field


@dataclass
class MemberRecord:
    """One connection of a member; only the leader's thread changes it."""

    identity: bytes  # new for each connection
    node_rank: int
    address: str
    leader_address: str  # as the member has connected
    prepared: bool = False
    has_failed: bool = False  # its end is expected
    last_seen: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.node_rank} ({self.address})"
