"""KVManager: finds the KV blocks of a request in the prefix cache, allocates and frees them.

Only full blocks are shared, and they are not written again, so sharing copies nothing. All KV groups use one pool.
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise, zip_longest

from kvasir.engine.engine_request import BlockTable, EngineRequest, PrefixLookup
from kvasir.engine.kv.block_pool import BlockPool
from kvasir.engine.kv.group_rule import rule_of
from kvasir.engine.kv.prefix_cache import PrefixCache
from kvasir.layers.kv import FullAttention, KVCacheConfig
from kvasir.request.hashing import extend_chain, split_chain

_GROUP = 0  # hand-overs need a cache with one KV group


class HeldBlocks:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._holders: Counter[int] = Counter()

    @property
    def num_blocks(self) -> int:
        return len(self._holders)

    def find(self, hashes: Sequence[bytes], most: int) -> list[int]:
        return [] if self._pool.cache is None else self._pool.cache.find(_GROUP, hashes, most)

    def hold(self, block_ids: Sequence[int]) -> None:
        self._pool.share(block_ids)
        self._holders.update(block_ids)

    def hold_empty(self, count: int) -> list[int]:
        block_ids = self._pool.allocate(count)
        self._holders.update(block_ids)
        return block_ids

    def store(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        if self._pool.cache is not None:
            for block_hash, block_id in zip(hashes, block_ids, strict=True):
                self._pool.cache.put(_GROUP, block_hash, block_id)

    def release(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self._holders[block_id] -= 1
            if not self._holders[block_id]:
                del self._holders[block_id]
        # in the order of the prompt: its end is reused first
        self._pool.free(block_ids)


UNLIMITED = 2**40


class CacheInUse(RuntimeError):
    """The prefix cache cannot be emptied now."""


class KVManager:
    def __init__(self, config: KVCacheConfig, *, prefix_caching: bool, longest_chunk: int) -> None:
        self.block_size = config.block_size
        num_groups = len(config.groups)
        self.pool = BlockPool(config.num_blocks, PrefixCache(num_groups) if prefix_caching else None)
        self.held = HeldBlocks(self.pool)
        self.longest_sequence = longest_sequence(config, longest_chunk)
        self.num_queried_tokens = 0  # at first admissions
        self.num_hit_tokens = 0
        self._cache = self.pool.cache
        self._rules = tuple(rule_of(group.spec, longest_chunk) for group in config.groups)
        # the common case grows without rules
        self.is_plain = len(config.groups) == 1 and isinstance(config.groups[0].spec, FullAttention)

    @property
    def cache_block_size(self) -> int | None:
        return None if self._cache is None else self.block_size

    # ---------------------------------------------------------------------------------------------- admission

    def cost_of(self, request: EngineRequest) -> int:
        """Return how many free blocks an admission takes, cached ones included."""
        return self._look_up(request).cost

    def num_cached_tokens(self, request: EngineRequest) -> int:
        return len(self._look_up(request).tables[0]) * self.block_size

    def growth(self, request: EngineRequest, more: int) -> int:
        """Return how many free blocks it takes to fill `more` further blocks."""
        known = self._blocks_for(request.num_tokens)
        return sum([rule.growth(known, more) for rule in self._rules])

    def admit(self, request: EngineRequest) -> list[list[int]]:
        """Allocate blocks and return a copy of the tables; cached tokens count as computed."""
        prefix = self._look_up(request).tables
        request.lookup = None
        request.num_known_blocks = len(prefix[0])
        request.num_computed_tokens = request.num_known_blocks * self.block_size
        tables = [
            BlockTable(ids, rule.first_read(request.num_computed_tokens))
            for rule, ids in zip(self._rules, prefix, strict=True)
        ]
        for table in tables:  # before any allocation, which evicts
            self.pool.share(table.blocks)
        request.block_tables = tables
        self.grow(request, self.missing(request, request.num_tokens))
        self._count_hits(request)
        return [table.ids.copy() for table in tables]

    # ------------------------------------------------------------------------------------------------ running

    def missing(self, request: EngineRequest, num_tokens: int) -> list[int]:
        """Return how many blocks each group lacks for `num_tokens`; frees those no longer read."""
        tables = request.block_tables
        if self.is_plain:
            return [self._blocks_for(num_tokens) - len(tables[0].ids)]
        wanted = self._blocks_for(max(num_tokens, request.num_tokens))
        missing, freed = [], []
        for rule, table in zip(self._rules, tables, strict=True):
            first = rule.first_read(request.num_computed_tokens)
            if first > table.first:
                # Steps in flight that read these blocks run before any step that overwrites them.
                freed += table.cut(first)
            missing.append(max(0, rule.end(table.first, wanted) - len(table.ids)))
        if freed:
            self.pool.free(freed)
        return missing

    def grow(self, request: EngineRequest, missing: list[int]) -> list[list[int]]:
        tables = request.block_tables
        new = self.pool.allocate(sum(missing))
        if self.is_plain:
            ids = tables[0].ids
            ids += new
            request.num_slots = len(ids) * self.block_size
            return [new]
        ends = list(accumulate(missing, initial=0))
        new_of_groups = [new[start:end] for start, end in pairwise(ends)]
        for table, new_ids in zip(tables, new_of_groups, strict=True):
            table.ids += new_ids
        request.num_slots = min([len(table.ids) for table in tables]) * self.block_size
        return new_of_groups

    def remember(self, request: EngineRequest) -> None:
        # The block of a pending token has no hash yet.
        full = min(request.num_computed_tokens, len(request.token_ids)) // self.block_size
        if self._cache is not None:
            self._hash(request)
            for group, table in enumerate(request.block_tables):
                for place in range(max(request.num_known_blocks, table.first), full):
                    self._cache.put(group, request.block_hashes[place], table.ids[place])
        request.num_known_blocks = full

    def release(self, request: EngineRequest) -> None:
        tables = request.block_tables
        if len(tables) == 1:
            self.pool.free(tables[0].blocks)
        else:
            # Place by place: the ends of all groups are reused first.
            places = chain.from_iterable(zip_longest(*[table.ids for table in tables]))
            self.pool.free([block_id for block_id in places if block_id])  # not null
        request.block_tables = []
        request.num_slots = 0
        request.num_known_blocks = 0

    def distrust(self, request: EngineRequest) -> None:
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
        self.pool.check_all_free(besides=self.held.num_blocks)
        if self._cache is not None:
            self._cache.check()

    # --------------------------------------------------------------------------------------------------- pieces

    def _look_up(self, request: EngineRequest) -> PrefixLookup:
        # Kept: each step asks for the head of the queue.
        generation = (self.pool.generation, 0 if self._cache is None else self._cache.generation)
        last = request.lookup
        if last is not None and last.generation == generation and last.num_tokens == request.num_tokens:
            return last
        tables = self._cached_prefix(request)
        wanted = self._blocks_for(request.num_tokens)
        num_cached_tokens = len(tables[0]) * self.block_size
        cost = 0
        for rule, ids in zip(self._rules, tables, strict=True):
            first = rule.first_read(num_cached_tokens)
            cost += rule.end(first, wanted) - len(ids)
            cost += sum(1 for block_id in ids[first:] if self.pool.users(block_id) == 0)
        request.lookup = PrefixLookup(generation, request.num_tokens, tables, cost)
        return request.lookup

    def _cached_prefix(self, request: EngineRequest) -> list[list[int]]:
        """Return a table for each group: the longest prefix cached in all groups."""
        if self._cache is None or not self._reads_cache(request):
            return [[] for _ in self._rules]
        self._hash(request)
        # One token at least is computed: the next one is sampled from its logits.
        length = (request.num_tokens - 1) // self.block_size
        # A shorter prefix has other windows: ask all groups again.
        while True:
            tables = []
            for group, rule in enumerate(self._rules):
                tables.append(rule.find(self._cache, group, request.block_hashes, length))
                length = len(tables[-1])
            if len(tables[0]) == length:  # lengths only fall
                return tables

    def _reads_cache(self, request: EngineRequest) -> bool:
        # Prompt log probabilities need the logits of every prompt token.
        return self._cache is not None and request.params.prompt_logprobs is None

    def _count_hits(self, request: EngineRequest) -> None:
        if request.num_cached_tokens is not None:
            return
        request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        request.queue_seconds = time.monotonic() - request.arrived
        if self._reads_cache(request):
            self.num_queried_tokens += request.num_tokens
            self.num_hit_tokens += request.num_computed_tokens

    def _hash(self, request: EngineRequest) -> None:
        if request.packed_hashes:
            request.block_hashes, request.packed_hashes = split_chain(request.packed_hashes), b""
        extend_chain(request.block_hashes, request.chain_root, request.token_ids, self.block_size)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def longest_sequence(config: KVCacheConfig, longest_chunk: int) -> int:
    """Return the most tokens of a request alone in the pool; the last one needs no KV."""
    rules = [rule_of(group.spec, longest_chunk) for group in config.groups]

    def fits(num_blocks: int) -> bool:
        return sum(rule.most(num_blocks) for rule in rules) <= config.num_blocks

    if fits(UNLIMITED):
        return UNLIMITED
    fitting, too_many = 0, config.num_blocks + 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if fits(middle) else (fitting, middle)
    return fitting * config.block_size + 1


def requests_that_fit(config: KVCacheConfig, num_tokens: int, longest_chunk: int) -> int:
    """Return how many requests of this length fit at one time. Recurrent states are not counted."""
    blocks = -(-(num_tokens - 1) // config.block_size)  # the last token needs no KV
    each = sum(rule_of(group.spec, longest_chunk).most(blocks) for group in config.groups)
    return config.num_blocks // max(1, each)
