"""The KV blocks of requests: found in the prefix cache, taken from the pool, given back. Owned by the scheduler.

The blocks of a request, in the order of its block table:

    | found in the prefix cache, shared | full, known to the cache as of the step that fills them | being filled |
      └────────────────────── num_known_blocks ──────────────────────────────────────────────┘

Only full blocks are shared, and a full block is not written again: sharing needs no copies.
"""

import time
from itertools import islice

from kvasir.engine.kv.block_pool import BlockPool
from kvasir.engine.kv.prefix_cache import PrefixCache, PrefixLookup
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.hashing import extend_chain, split_chain


class CacheInUse(RuntimeError):
    """The prefix cache cannot be emptied now; the message is for the caller to read."""


class RequestBlocks:
    """Raises RuntimeError where blocks are taken that `can_...` would have denied."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, PrefixCache() if prefix_caching else None)
        self.num_queried_tokens = 0
        """Tokens of requests that were looked up in the prefix cache when they were first admitted."""
        self.num_hit_tokens = 0
        """Those of them that were found."""
        self._cache = self.pool.cache

    @property
    def cache_block_size(self) -> int | None:
        """Tokens per block of the prefix cache; None without one."""
        return None if self._cache is None else self.block_size

    # ---------------------------------------------------------------------------------------------- admission

    def cost_of(self, request: EngineRequest) -> int:
        """Return how many free blocks an admission of the request takes: empty ones for the tokens that are not
        cached, and the cached ones that have no users."""
        return self._look_up(request).cost

    def admit(self, request: EngineRequest) -> None:
        """Give the request blocks for all tokens that it has; cached tokens count as computed."""
        prefix = self._look_up(request).block_ids
        request.lookup = None
        self.pool.share(prefix)
        request.block_ids = prefix + self.pool.allocate(self._blocks_for(request.num_tokens) - len(prefix))
        request.num_known_blocks = len(prefix)
        request.num_computed_tokens = len(prefix) * self.block_size
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            request.queue_seconds = time.monotonic() - request.arrived
            if self._reads_cache(request):
                self.num_queried_tokens += request.num_tokens
                self.num_hit_tokens += request.num_computed_tokens

    # ------------------------------------------------------------------------------------------------ running

    def missing(self, request: EngineRequest, num_tokens: int) -> int:
        """Blocks that the request lacks to hold this many tokens."""
        return self._blocks_for(num_tokens) - len(request.block_ids)

    def grow(self, request: EngineRequest, count: int) -> list[int]:
        """The ids of this many more blocks."""
        new = self.pool.allocate(count)
        request.block_ids += new
        return new

    def remember(self, request: EngineRequest) -> None:
        """Put the blocks that are full with the steps scheduled so far into the prefix cache.

        A token that is being sampled is not known, and neither is the hash of its block: the next call finds it.
        """
        full = min(request.num_computed_tokens, len(request.token_ids)) // self.block_size
        if self._cache is not None:
            self._hash(request)
            for place in range(request.num_known_blocks, full):
                self._cache.put(request.block_hashes[place], request.block_ids[place])
        request.num_known_blocks = full

    def release(self, request: EngineRequest) -> None:
        """The request has no row any more; its full blocks can be found until they are handed out again."""
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_known_blocks = 0

    def distrust(self, request: EngineRequest) -> None:
        """Drop the blocks that the request computed or found from the prefix cache: the fault may be in any of
        them."""
        if self._cache is not None:
            self._hash(request)
            self._cache.drop(request.block_hashes)

    # ------------------------------------------------------------------------------------------- the whole cache

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Raises CacheInUse while a request has blocks."""
        if self._cache is None:
            raise CacheInUse("this engine keeps no prefix cache (--no-enable-prefix-caching)")
        if self.pool.num_used:
            raise CacheInUse(
                f"{self.pool.num_used} of {self.pool.num_blocks} KV blocks are in use by requests: the prefix "
                "cache can be reset when no request is running"
            )
        self._cache.clear()

    def check_idle(self) -> None:
        """Raises AssertionError where a block is in use although no request is there."""
        self.pool.check_all_free()
        if self._cache is not None:
            self._cache.check()

    # --------------------------------------------------------------------------------------------------- pieces

    def _look_up(self, request: EngineRequest) -> PrefixLookup:
        """Return the cached prefix of a waiting request. It is needed in every step, so the result is kept."""
        generation = (self.pool.generation, 0 if self._cache is None else self._cache.generation)
        last = request.lookup
        if last is not None and last.generation == generation and last.num_tokens == request.num_tokens:
            return last
        prefix = self._cached_prefix(request)
        revived = sum(1 for block_id in prefix if self.pool.users(block_id) == 0)
        cost = self._blocks_for(request.num_tokens) - len(prefix) + revived
        request.lookup = PrefixLookup(generation, request.num_tokens, prefix, cost)
        return request.lookup

    def _cached_prefix(self, request: EngineRequest) -> list[int]:
        """Return the cached blocks of the request's prefix. At least one token is left to compute: the next one is
        sampled from its logits."""
        if self._cache is None or not self._reads_cache(request):
            return []
        self._hash(request)
        return self._cache.find(islice(request.block_hashes, (request.num_tokens - 1) // self.block_size))

    def _reads_cache(self, request: EngineRequest) -> bool:
        """Log probabilities of the prompt need the model's word on each of its tokens."""
        return self._cache is not None and request.params.prompt_logprobs is None

    def _hash(self, request: EngineRequest) -> None:
        if request.packed_hashes:
            request.block_hashes, request.packed_hashes = split_chain(request.packed_hashes), b""
        extend_chain(request.block_hashes, request.chain_root, request.token_ids, self.block_size)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def longest_sequence(num_blocks: int, block_size: int) -> int:
    """Tokens that a request can reach alone in the pool: the last token is emitted and needs no KV."""
    return num_blocks * block_size + 1
