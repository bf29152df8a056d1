"""Events of hand-overs, for the step loop."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PinWanted:
    """Another engine asks for blocks, which must not be reused until PinReleased."""

    session: int
    hashes: list[bytes]


@dataclass(frozen=True)
class PinReleased:
    session: int


@dataclass(frozen=True)
class FetchEnded:
    """The first `num_blocks` blocks have arrived and are verified."""

    fetch: int
    num_blocks: int
    problem: str  # why they are not all; "" if the source has no more


HandOverEvent = PinWanted | PinReleased | FetchEnded
