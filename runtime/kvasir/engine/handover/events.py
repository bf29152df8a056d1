"""Events of hand-overs for the step loop, which decides which blocks are free, in use or cached."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PinWanted:
    """Another engine asks for the blocks with these hashes: none of them may be reused until PinReleased."""

    session: int
    hashes: list[bytes]


@dataclass(frozen=True)
class PinReleased:
    """The blocks of this session have been read, or are not needed."""

    session: int


@dataclass(frozen=True)
class FetchEnded:
    """A fetch is over: its first `num_blocks` blocks have arrived and were verified."""

    fetch: int
    num_blocks: int
    problem: str  # why the others have not; "" if the other engine did not have them, or if there are none


HandOverEvent = PinWanted | PinReleased | FetchEnded
