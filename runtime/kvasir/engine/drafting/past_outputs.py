"""PastOutputs: the outputs of earlier requests, to look up in. The oldest are dropped first."""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final

from kvasir.engine.drafting.ngram_index import NgramIndex
from kvasir.request.tokens import token_array

# Of all outputs: 12 bytes each.
MAX_TOKENS: Final = 2**20
# About 2 KiB each, and each key has its own.
MAX_VOLUMES: Final = 4096
# Ends an output; no vocabulary has it.
END: Final = 2**32 - 1
_VOLUMES: Final = 4


class Volume:
    """Outputs one after the other, with an END after each."""

    def __init__(self, ngram: int) -> None:
        self.text = token_array()
        self.index = NgramIndex(ngram)
        self.num_outputs = 0


class PastOutputs:
    """Outputs by key. Keys do not see each other's: the time of an answer would reveal them."""

    def __init__(self, ngram: int, max_outputs: int, max_tokens: int = MAX_TOKENS) -> None:
        self._ngram = ngram
        self._max_outputs = max_outputs
        self._max_tokens = max_tokens
        self._by_key: dict[bytes, deque[Volume]] = {}
        self._order: deque[tuple[bytes, Volume]] = deque()  # of their beginning
        self.num_tokens = 0
        self.num_outputs = 0

    def add(self, key: bytes, output: "array[int]") -> None:
        if not output or len(output) >= self._max_tokens or not self._max_outputs:
            return
        volumes = self._by_key.setdefault(key, deque())
        if not volumes or self._is_full(volumes[-1], len(output)):
            volumes.append(Volume(self._ngram))
            self._order.append((key, volumes[-1]))
        volume = volumes[-1]
        volume.text.extend(output)
        volume.text.append(END)
        volume.num_outputs += 1
        self.num_outputs += 1
        self.num_tokens += len(output) + 1
        while self._is_too_large():
            self._drop_oldest()

    def index(self, key: bytes, most: int) -> None:
        """Index up to `most` further tokens of the key."""
        for volume in reversed(self._by_key.get(key, ())):
            if not (most := most - volume.index.extend(volume.text, most)):
                return

    def places(self, key: bytes, ngram: "array[int]") -> Iterator[tuple["array[int]", int]]:
        """Yield texts and positions at which the n-gram ends, the newest first."""
        for volume in reversed(self._by_key.get(key, ())):
            for position in volume.index.positions(volume.text, ngram, before=len(volume.text)):
                yield volume.text, position

    def _is_full(self, volume: Volume, further: int) -> bool:
        # A volume is dropped whole, so there are some.
        return (
            volume.num_outputs >= max(1, self._max_outputs // _VOLUMES)
            or len(volume.text) + further >= self._max_tokens // _VOLUMES
        )

    def _is_too_large(self) -> bool:
        return (
            self.num_outputs > self._max_outputs
            or self.num_tokens > self._max_tokens
            or len(self._order) > MAX_VOLUMES
        )

    def _drop_oldest(self) -> None:
        key, volume = self._order.popleft()
        self.num_outputs -= volume.num_outputs
        self.num_tokens -= len(volume.text)
        volumes = self._by_key[key]
        volumes.popleft()
        if not volumes:
            del self._by_key[key]
