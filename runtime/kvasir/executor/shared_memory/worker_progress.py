"""The position of a worker within a step, readable even if it was killed in a write.

A record has three words of 8 bytes, each with the version in its low bits, so a mixture is detected. Two records
are written in turn: one is always valid.
"""

import time
from typing import Final, NamedTuple

PROGRESS_BYTES: Final = 48
MAX_STEP: Final = 2**48 - 1
MAX_PHASE: Final = 2**16 - 1
MAX_PLACE: Final = 2**32 - 1
_VERSION_BITS: Final = 16
_VERSION_MASK: Final = 2**_VERSION_BITS - 1
_WORDS: Final = 3
_PLACE_BITS: Final = 32
_NANOSECONDS: Final = 1000  # per unit of time; 48 bits last 8 years of uptime
# Versions repeat after 2**16 writes, which take longer.
_MAX_READ_NANOSECONDS: Final = 1_000_000
_MAX_READS: Final = 1000  # both records are incomplete only if the worker writes twice within a read


class WorkerProgress(NamedTuple):
    step: int
    phase: int
    place: int  # within the phase: a layer, or a line of code
    since: float  # of time.monotonic, equal in all processes


class ProgressWriter:
    def __init__(self, memory: memoryview) -> None:
        # PROGRESS_BYTES zeros, aligned to 8
        self._words = memory.cast("Q")
        self._version = 0

    def enter(self, step: int, phase: int, place: int = 0) -> None:
        """Begin a phase now. The numbers are at most MAX_STEP, MAX_PHASE and MAX_PLACE."""
        version = self._version = (self._version + 1) & _VERSION_MASK
        first = (version & 1) * _WORDS
        words = self._words
        words[first] = step << _VERSION_BITS | version
        words[first + 1] = (phase << _PLACE_BITS | place) << _VERSION_BITS | version
        words[first + 2] = (time.monotonic_ns() // _NANOSECONDS) << _VERSION_BITS | version


class ProgressReader:
    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")

    def read(self) -> WorkerProgress | None:
        """Return the last phase that was written completely; None before the first."""
        for _ in range(_MAX_READS):
            began = time.monotonic_ns()
            words = self._words.tolist()
            if time.monotonic_ns() - began > _MAX_READ_NANOSECONDS:
                continue
            valid = [record for record in (0, 1) if _is_complete(words, record)]
            if valid:
                return _decoded(words, _newest(words, valid))
        return None


def _is_complete(words: list[int], record: int) -> bool:
    versions = {word & _VERSION_MASK for word in words[record * _WORDS : (record + 1) * _WORDS]}
    return len(versions) == 1 and versions.pop() & 1 == record


def _newest(words: list[int], valid: list[int]) -> int:
    if len(valid) == 1:
        return valid[0]
    ahead = (words[_WORDS] - words[0]) & _VERSION_MASK
    return 1 if ahead == 1 else 0


def _decoded(words: list[int], record: int) -> WorkerProgress | None:
    step, position, since = (word >> _VERSION_BITS for word in words[record * _WORDS : (record + 1) * _WORDS])
    if since == 0:
        return None
    phase, place = position >> _PLACE_BITS, position & MAX_PLACE
    return WorkerProgress(step, phase, place, since * _NANOSECONDS / 1e9)
