"""Prompted: a complete request for an engine, before it has an id, and the block hashes of its prompt."""

import asyncio
from array import array
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from kvasir.client.text.detokenizer import Detokenizer, NoText, TextStream
from kvasir.client.text.stop_strings import StopStrings
from kvasir.request.hashing import BlockHashing, chain_root, packed_chain
from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind

# Longer prompts are hashed in a thread; these take under 0.5 ms on the event loop.
INLINE_TOKENS: Final = 2048


class PromptHashes:
    """The hashes of a prompt, shared by its choices."""

    def __init__(self, prompt_token_ids: "array[int]", cache_salt: str = "", adapter: str = "") -> None:
        # `adapter`: its digest
        self._token_ids = prompt_token_ids
        self._cache_salt = cache_salt
        self._adapter = adapter
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
        root = chain_root(self._cache_salt, adapter=self._adapter, algorithm=hashing.algorithm)
        return packed_chain(root, self._token_ids, hashing.block_size)


@dataclass(frozen=True, slots=True)
class Prompted:
    prompt_token_ids: "array[int]"
    core: RequestCore
    stops: StopStrings | None = None
    include_stop: bool = False  # keeps the final stop string or token in the text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    # shown despite `skip_special_tokens`, for a parser of the output
    shown_special_ids: frozenset[int] = frozenset()
    hashes: PromptHashes | None = None  # None: the engine hashes the prompt
    data_parallel_rank: int | None = None
    constraint_field: str | None = None  # field of the client's request, for errors

    @property
    def params(self) -> SamplingParams:
        return self.core.params

    def with_core(self, **changes: object) -> "Prompted":
        return replace(self, core=msgspec.structs.replace(self.core, **changes))

    def child(self, index: int) -> "Prompted":
        """Return the request of one of several choices, with its own seed."""
        if index == 0:
            return self
        seed = (self.params.seed + index + 2**63) % 2**64 - 2**63
        # only the first choice scores the prompt: the scores are equal
        return self.with_core(params=msgspec.structs.replace(self.params, seed=seed, prompt_logprobs=None))

    def text(self, detokenizer: Detokenizer) -> TextStream:
        if self.core.kind is RequestKind.POOL:
            return NoText()
        return detokenizer.stream(
            self.prompt_token_ids,
            self.skip_special_tokens,
            self.spaces_between_special_tokens,
            self.shown_special_ids,
        )
