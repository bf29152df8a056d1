"""The block hashes of a prompt, for the prefix caches of engines: made once per block size, by a thread if long."""

import asyncio
from array import array
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from kvasir.hashing import chain_root, packed_chain

INLINE_TOKENS: Final = 2048
"""Prompts up to this length are hashed on the event loop, in under half a millisecond; longer ones in a thread."""


class PromptHashes:
    """One prompt's hashes; shared by all of its choices."""

    def __init__(self, prompt_token_ids: "array[int]", cache_salt: str = "") -> None:
        self._token_ids = prompt_token_ids
        self._cache_salt = cache_salt
        self._known: dict[int, bytes] = {}
        self._running: dict[int, asyncio.Future[bytes]] = {}

    @property
    def is_long(self) -> bool:
        """Whether `make` has to be called, because hashing would hold up the event loop."""
        return len(self._token_ids) > INLINE_TOKENS

    def known(self, block_size: int) -> bytes:
        """Return the hashes for blocks of this size; empty for a long prompt that `make` was not called for."""
        if block_size not in self._known and not self.is_long:
            self._known[block_size] = self._make(block_size)
        return self._known.get(block_size, b"")

    async def make(self, block_sizes: Iterable[int], threads: Executor) -> None:
        """Have a thread hash a long prompt for blocks of these sizes, as far as that is not done yet."""
        if not self.is_long:
            return
        loop = asyncio.get_running_loop()
        for size in block_sizes:
            if size not in self._known:
                if size not in self._running:
                    self._running[size] = loop.run_in_executor(threads, self._make, size)
                # Another choice may wait for the same hashes, also if this one is cancelled.
                self._known[size] = await asyncio.shield(self._running[size])
                self._running.pop(size, None)

    def _make(self, block_size: int) -> bytes:
        return packed_chain(chain_root(self._cache_salt), self._token_ids, block_size)
