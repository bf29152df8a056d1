"""The index of all prefix caches: which engines hold which block (docs/design/routing.md).

Blocks of a request that was just sent are *predicted* for some time, so that a burst finds them. An entry maps a
hash to a bit mask of engines.
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
"""Memory: about 70 MB."""
MAX_PREDICTED: Final = 2**15
PREDICTED_STEP: Final = 8
"""Each eighth block of a chain is predicted, and the last: a hash covers all blocks before it."""
SLICE: Final = 4096
"""Entries to clean up after each message: half a millisecond."""
MAX_THINNING: Final = 0xFF

log = logging.getLogger(__name__)
_each_hash = Struct(f"{HASH_BYTES}s").iter_unpack
_CHUNK: Final = 64
_chunk_at = Struct(f"{HASH_BYTES}s" * _CHUNK).unpack_from
_ZEROS: Final = repeat(0)


# Operations on tuples are a few times faster than on single hashes.
def _chunks(packed: bytes) -> Iterator[tuple[bytes, ...]]:
    size = _CHUNK * HASH_BYTES
    end = len(packed) // size * size
    for place in range(0, end, size):
        yield _chunk_at(packed, place)
    if end < len(packed):
        yield tuple([block_hash for (block_hash,) in _each_hash(packed[end:])])


def _predicted_ends(packed: bytes) -> list[int]:
    step = PREDICTED_STEP * HASH_BYTES
    ends = list(range(step, len(packed) + 1, step))
    return ends if not len(packed) % step else [*ends, len(packed)]


@dataclass(slots=True)
class _Engine:
    bit: int
    next_sequence: int = 0
    """Other messages are dropped until the next snapshot."""


class _Prediction(NamedTuple):
    until: float
    bit: int
    hashes: list[bytes]


class Leads(NamedTuple):
    """Leading blocks that each engine holds, and that it holds or will compute."""

    held: list[int]
    expected: list[int]


class CacheIndex:
    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._limit = limit
        self._engines: dict[str, _Engine] = {}
        self._held: dict[bytes, int] = {}
        self._thinning = 0
        """Hashes whose first byte has one of these bits are dropped."""
        self._stale = 0
        """Bits of lost engines, not reusable while entries may have them."""
        self._cleaning: Iterator[bytes] | None = None
        self._cleaned = 0
        self._predicted: dict[bytes, int] = {}
        self._predictions: list[_Prediction] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def share(self) -> float:
        return 1 / (self._thinning + 1)

    # ----------------------------------------------------------------------------------------------- engines

    def apply(self, engine: str, message: CacheEvents) -> None:
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
        known = self._engines.pop(engine, None)
        if known is not None:
            self._stale |= known.bit
            self._drop_predictions(known.bit)

    def hashes_of(self, engine: str) -> set[bytes]:
        known = self._engines.get(engine)
        return set() if known is None else {key for key, mask in self._held.items() if mask & known.bit}

    # ----------------------------------------------------------------------------------------------- prompts

    def lookup(self, packed: bytes, engines: Sequence[str], now: float) -> Leads:
        self._expire(now)
        bits = [known.bit if (known := self._engines.get(engine)) else 0 for engine in engines]
        alive = 0
        for bit in bits:
            alive |= bit
        # For each group of engines that stopped at the same block: their bits and the number of blocks.
        ends: list[tuple[int, int]] = []
        end = place = 0
        held, thinning = self._held.get, self._thinning
        for hashes in _chunks(packed if alive else b""):
            masks = list(map(held, hashes, _ZEROS))
            # All engines hold the whole chunk, which is common: no step through its hashes.
            if masks[0] & alive == alive and masks.count(masks[0]) == len(masks):
                place += len(masks)
                end = place
                continue
            for block_hash, mask in zip(hashes, masks, strict=True):
                place += 1
                # A hash that was thinned out is missing for every engine.
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
        """Count the chain's blocks from `first` on as held by the engine until the time `until`."""
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
        self._stale |= engine.bit
        self._drop_predictions(engine.bit)
        engine.bit = self._free_bit()

    def _free_bit(self) -> int:
        used = self._stale | self._cleaned
        for known in self._engines.values():
            used |= known.bit
        return ~used & (used + 1)

    def _clean(self, count: int) -> None:
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
