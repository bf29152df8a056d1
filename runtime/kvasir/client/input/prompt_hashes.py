"""The block hashes of a prompt, for engines' prefix caches."""

import asyncio
from array import array
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final

from kvasir.request.hashing import BlockHashing, chain_root, packed_chain

# Longer prompts are hashed in a thread; these take under 0.5 ms on the event loop.
INLINE_TOKENS: Final = 2048


class PromptHashes:
    """The hashes of a prompt, shared by its choices."""

    def __init__(self, prompt_token_ids: "array[int]", cache_salt: str = "") -> None:
        self._token_ids = prompt_token_ids
        self._cache_salt = cache_salt
        self._known: dict[BlockHashing, bytes] = {}
        self._running: dict[BlockHashing, asyncio.Future[bytes]] = {}

    @property
    def is_long(self) -> bool:
        """Return whether `make` must precede `known`."""
        return len(self._token_ids) > INLINE_TOKENS

    def known(self, hashing: BlockHashing) -> bytes:
        """Return the hashes; empty for a long prompt without `make`."""
        if hashing not in self._known and not self.is_long:
            self._known[hashing] = self._make(hashing)
        return self._known.get(hashing, b"")

    async def make(self, hashings: Iterable[BlockHashing], threads: Executor) -> None:
        """Hash a long prompt in a thread."""
        if not self.is_long:
            return
        loop = asyncio.get_running_loop()
        for hashing in hashings:
            if hashing not in self._known:
                if hashing not in self._running:
                    self._running[hashing] = loop.run_in_executor(threads, self._make, hashing)
                # another choice may wait for these hashes
                self._known[hashing] = await asyncio.shield(self._running[hashing])
                self._running.pop(hashing, None)

    def _make(self, hashing: BlockHashing) -> bytes:
        root = chain_root(self._cache_salt, algorithm=hashing.algorithm)
        return packed_chain(root, self._token_ids, hashing.block_size)
