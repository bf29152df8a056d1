"""The index of all prefix caches: which engines hold which block. The router looks prompts up in it.

Engines report their hashes (CacheEvents), and the order of the link makes the index exact up to the last message. A
request that was just sent will bring its blocks into the cache of its engine: these are *predicted* for some time,
so that the next requests of a burst find them.

An entry maps a hash to a bit mask with a bit for each engine. If an engine is lost its bit is dropped at once, and
the entries are cleaned up later, in slices. Above the limit of entries the index is thinned out: only hashes whose
first bits are zero are kept, half as many each time. The cached part of a prompt is then known up to the last
block that is kept, which is enough to compare engines.
"""

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from struct import Struct
from typing import Final, NamedTuple

from kvasir.link.protocol import CacheEvents
from kvasir.request.hashing import HASH_BYTES

MAX_ENTRIES: Final = 2**19
"""Hashes in the index, of all engines together: about 70 MB."""
MAX_PREDICTED: Final = 2**15
"""Predicted hashes; the oldest predictions are dropped first."""
PREDICTED_STEP: Final = 8
"""Only each eighth block of a chain is predicted, and its last one: a hash covers all blocks before it."""
SLICE: Final = 4096
"""Entries that are cleaned up after each message: half a millisecond."""
MAX_THINNING: Final = 0xFF
"""Bits of the first byte of a hash."""

log = logging.getLogger(__name__)
_each_hash = Struct(f"{HASH_BYTES}s").iter_unpack
_CHUNK: Final = 64
_chunk_at = Struct(f"{HASH_BYTES}s" * _CHUNK).unpack_from
_ZEROS: Final = repeat(0)


def _chunks(packed: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the hashes in tuples: many operations on a tuple are a few times faster than one on each hash."""
    size = _CHUNK * HASH_BYTES
    end = len(packed) // size * size
    for place in range(0, end, size):
        yield _chunk_at(packed, place)
    if end < len(packed):
        yield tuple([block_hash for (block_hash,) in _each_hash(packed[end:])])


def _predicted_ends(packed: bytes) -> list[int]:
    """Return where the hashes end, in bytes, that predictions of this chain use."""
    step = PREDICTED_STEP * HASH_BYTES
    ends = list(range(step, len(packed) + 1, step))
    return ends if not len(packed) % step else [*ends, len(packed)]


@dataclass(slots=True)
class _Engine:
    bit: int
    next_sequence: int = 0
    """The sequence number of the next message. Others are dropped, up to the next snapshot."""


class _Prediction(NamedTuple):
    until: float
    bit: int
    hashes: list[bytes]


class Leads(NamedTuple):
    """Numbers of leading blocks of a chain, for each engine of a look-up."""

    held: list[int]
    """Those that the engine holds, by its reports."""
    expected: list[int]
    """Those that it holds or is about to compute."""


class CacheIndex:
    """Engines by incarnation. Times are those of one clock, which the caller chooses."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._engines: dict[str, _Engine] = {}
        self._held: dict[bytes, int] = {}
        self._thinning = 0
        """Hashes whose first byte has one of these bits are not kept."""
        self._stale = 0
        """Bits of engines that were lost. They are not used again before no entry has them."""
        self._cleaning: Iterator[bytes] | None = None
        self._cleaned = 0
        """Bits that the present run removes."""
        self._predicted: dict[bytes, int] = {}
        self._predictions: list[_Prediction] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def share(self) -> float:
        """Return the share of the hashes that the index keeps: 1 unless it was thinned out."""
        return 1 / (self._thinning + 1)

    # ----------------------------------------------------------------------------------------------- engines

    def apply(self, engine: str, message: CacheEvents) -> None:
        """Take a report of this engine."""
        if len(message.stored) % HASH_BYTES or len(message.evicted) % HASH_BYTES:
            log.error("%s: a report of its prefix cache has half a hash; it is dropped", engine)
            return
        known = self._engines.get(engine)
        if known is None:
            known = self._engines[engine] = _Engine(self._free_bit())
        if message.sequence != known.next_sequence:
            if message.sequence:
                if known.next_sequence:
                    log.error("%s: a report of its prefix cache is missing; it counts as empty", engine)
                    self._retire(known)
                known.next_sequence = 0
                return
            self._retire(known)
        known.next_sequence = message.sequence + 1
        if message.reset:
            self._retire(known)
        self._drop(known.bit, message.evicted)
        self._add(known.bit, message.stored)
        if len(self._held) > self._limit and self._cleaning is None and self._thinning < MAX_THINNING:
            self._thinning = 2 * self._thinning + 1
            self._begin_cleaning()
            log.warning("the index of prefix caches is full: it keeps 1 of %d blocks", self._thinning + 1)
        self._clean(SLICE + 4 * len(message.stored) // HASH_BYTES)

    def forget(self, engine: str) -> None:
        """Drop all that is known of an engine that is lost."""
        known = self._engines.pop(engine, None)
        if known is not None:
            self._stale |= known.bit
            self._drop_predictions(known.bit)

    def hashes_of(self, engine: str) -> set[bytes]:
        """Return the hashes that this engine holds. Slow: for tests."""
        known = self._engines.get(engine)
        return set() if known is None else {key for key, mask in self._held.items() if mask & known.bit}

    # ----------------------------------------------------------------------------------------------- prompts

    def lookup(self, packed: bytes, engines: Sequence[str], now: float) -> Leads:
        """Return how many leading blocks of this chain each of these engines holds, or will hold."""
        self._expire(now)
        bits = [known.bit if (known := self._engines.get(engine)) else 0 for engine in engines]
        alive = 0
        for bit in bits:
            alive |= bit
        ends: list[tuple[int, int]] = []
        end = place = 0
        held, thinning = self._held.get, self._thinning
        for hashes in _chunks(packed if alive else b""):
            masks = list(map(held, hashes, _ZEROS))
            if masks[0] & alive == alive and masks.count(masks[0]) == len(masks):
                place += len(masks)
                end = place
                continue
            for block_hash, mask in zip(hashes, masks, strict=True):
                place += 1
                if mask & alive != alive and not block_hash[0] & thinning:
                    ends.append((alive & ~mask, end))
                    alive &= mask
                if mask & alive:
                    end = place
            if not alive:
                break
        ends.append((alive, end))
        leads = [next((end for gone, end in ends if gone & bit), 0) for bit in bits]
        return Leads(leads, self._with_predicted(packed, bits, leads) if self._predicted else leads)

    def predict(self, engine: str, packed: bytes, first: int, now: float, until: float) -> None:
        """Count the blocks of this chain from `first` on as held by the engine, which is about to compute them."""
        known = self._engines.get(engine)
        if known is None:
            known = self._engines[engine] = _Engine(self._free_bit())
        self._expire(now)
        bit = known.bit
        hashes = [packed[end - HASH_BYTES : end] for end in _predicted_ends(packed) if end > first * HASH_BYTES]
        for block_hash in hashes:
            self._predicted[block_hash] = self._predicted.get(block_hash, 0) | bit
        if hashes:
            heapq.heappush(self._predictions, _Prediction(until, bit, hashes))
        while len(self._predicted) > MAX_PREDICTED:
            self._end_prediction()

    # ------------------------------------------------------------------------------------------------- pieces

    def _with_predicted(self, packed: bytes, bits: list[int], leads: list[int]) -> list[int]:
        """Return `leads`, or more for engines that will hold more."""
        found = 0
        for end in reversed(_predicted_ends(packed)):
            mask = self._predicted.get(packed[end - HASH_BYTES : end], 0)
            if mask & ~found:
                blocks = end // HASH_BYTES
                leads = [
                    max(lead, blocks) if bit & mask & ~found else lead
                    for bit, lead in zip(bits, leads, strict=True)
                ]
                found |= mask
        return leads

    def _add(self, bit: int, packed: bytes) -> None:
        held, thinning = self._held, self._thinning
        for (block_hash,) in _each_hash(packed):
            if not block_hash[0] & thinning:
                held[block_hash] = held.get(block_hash, 0) | bit

    def _drop(self, bit: int, packed: bytes) -> None:
        held = self._held
        for (block_hash,) in _each_hash(packed):
            mask = held.get(block_hash, 0)
            if mask == bit:
                del held[block_hash]
            elif mask & bit:
                held[block_hash] = mask & ~bit

    def _retire(self, engine: _Engine) -> None:
        """Give the engine a new bit: it holds nothing."""
        self._stale |= engine.bit
        self._drop_predictions(engine.bit)
        engine.bit = self._free_bit()

    def _free_bit(self) -> int:
        used = self._stale | self._cleaned
        for known in self._engines.values():
            used |= known.bit
        return ~used & (used + 1)

    def _clean(self, count: int) -> None:
        """Go through some entries, and remove stale bits and hashes that are not kept any more."""
        if self._cleaning is None:
            if not self._stale:
                return
            self._begin_cleaning()
        held, keep = self._held, ~self._cleaned
        done = True
        for block_hash in islice(self._cleaning or (), count):
            done = False
            mask = held.get(block_hash, 0)
            if block_hash[0] & self._thinning or not mask & keep:
                held.pop(block_hash, None)
            elif mask & ~keep:
                held[block_hash] = mask & keep
        if done:
            self._cleaning, self._cleaned = None, 0

    def _begin_cleaning(self) -> None:
        self._cleaning = iter(list(self._held))
        self._cleaned, self._stale = self._stale, 0

    def _expire(self, now: float) -> None:
        while self._predictions and self._predictions[0].until <= now:
            self._end_prediction()

    def _end_prediction(self) -> None:
        _, bit, hashes = heapq.heappop(self._predictions)
        for block_hash in hashes:
            mask = self._predicted.get(block_hash, 0) & ~bit
            if mask:
                self._predicted[block_hash] = mask
            else:
                self._predicted.pop(block_hash, None)

    def _drop_predictions(self, bit: int) -> None:
        if any(prediction.bit == bit for prediction in self._predictions):
            self._predictions = [prediction for prediction in self._predictions if prediction.bit != bit]
            heapq.heapify(self._predictions)
            masks = {key: mask & ~bit for key, mask in self._predicted.items()}
            self._predicted = {key: mask for key, mask in masks.items() if mask}
