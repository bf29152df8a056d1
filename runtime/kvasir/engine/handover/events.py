"""Events of hand-overs for the step loop, which decides which blocks are free, in use or cached."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PinWanted:
    """Another engine asks for these blocks: none of them may be reused until PinReleased."""

    session: int
    hashes: list[bytes]


@dataclass(frozen=True)
class PinReleased:
    session: int


@dataclass(frozen=True)
class FetchEnded:
    """The first `num_blocks` blocks of the fetch have arrived and were verified."""

    fetch: int
    num_blocks: int
    problem: str  # why the others have not; "" if the other engine did not have them, or if there are none


HandOverEvent = PinWanted | PinReleased | FetchEnded
