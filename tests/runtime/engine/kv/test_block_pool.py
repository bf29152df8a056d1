from collections.abc import Callable

import pytest

from kvasir.engine.engine_request import NULL_BLOCK
from kvasir.engine.kv.block_pool import BlockPool, FreeQueue
from kvasir.engine.kv.prefix_cache import PrefixCache


def found(cache: PrefixCache, hashes: list[bytes]) -> list[int]:
    return cache.find(0, hashes, len(hashes))


def cached_pool(num_blocks: int) -> tuple[BlockPool, PrefixCache]:
    cache = PrefixCache()
    return BlockPool(num_blocks, cache), cache


def drain(queue: FreeQueue) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


def test_blocks_are_reused_in_the_order_they_were_freed() -> None:
    queue = FreeQueue(3)
    first, second = queue.pop(), queue.pop()
    queue.append(second)
    queue.append(first)
    assert drain(queue) == [3, second, first]


@pytest.mark.parametrize("removed", [1, 2, 3, 4])
def test_a_block_can_be_taken_from_anywhere_in_the_free_queue(removed: int) -> None:
    queue = FreeQueue(4)
    queue.remove(removed)
    assert removed not in queue
    assert drain(queue) == [block for block in (1, 2, 3, 4) if block != removed]
    queue.append(removed)
    assert removed in queue
    assert drain(queue) == [removed]


def test_a_block_can_be_made_the_first_to_be_reused() -> None:
    queue = FreeQueue(3)
    for _ in range(3):
        queue.pop()
    queue.append(2)
    queue.prepend(3)
    queue.append(1)
    assert drain(queue) == [3, 2, 1]
    queue.prepend(2)
    assert drain(queue) == [2]


def test_a_pool_of_one_block_hands_it_out_again_and_again() -> None:
    pool = BlockPool(1)
    for _ in range(3):
        assert pool.allocate(1) == [1]
        assert not pool.can_allocate(1)
        pool.free([1])
    pool.check_all_free()


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert NULL_BLOCK not in pool.allocate(5)


def test_the_end_of_a_chain_is_reused_before_its_beginning() -> None:
    pool, cache = cached_pool(3)
    chain = pool.allocate(3)
    for place, block_id in enumerate(chain):
        cache.put(0, bytes([place]), block_id)
    pool.free(chain)
    assert pool.allocate(3) == chain[::-1]


def test_blocks_without_a_cached_prefix_are_reused_first() -> None:
    pool, cache = cached_pool(5)
    kept, plain = pool.allocate(1), pool.allocate(2)
    cache.put(0, b"kept", kept[0])
    pool.free(kept)
    pool.free(plain)
    order = [pool.allocate(1)[0] for _ in range(5)]
    assert set(order[:2]) == set(plain)
    assert order[-1] == kept[0]


def test_a_cached_block_is_found_until_it_is_handed_out_again() -> None:
    pool, cache = cached_pool(2)
    [block] = pool.allocate(1)
    cache.put(0, b"x", block)
    pool.free([block])
    assert found(cache, [b"x"]) == [block]
    pool.allocate(1)
    assert found(cache, [b"x"]) == [block]
    assert pool.allocate(1) == [block]
    assert found(cache, [b"x"]) == []
    cache.check()


def test_a_shared_block_is_free_when_its_last_user_is_gone() -> None:
    pool, cache = cached_pool(3)
    [block] = pool.allocate(1)
    cache.put(0, b"x", block)
    pool.share([block])
    pool.free([block])
    assert (pool.num_used, pool.users(block)) == (1, 1)
    pool.free([block])
    pool.check_all_free()
    pool.share([block])  # from the middle of the free queue
    assert (pool.num_used, pool.users(block)) == (1, 1)
    assert block not in pool.allocate(2)
    with pytest.raises(RuntimeError, match="cannot allocate 1 KV blocks: 0 are free"):
        pool.allocate(1)


def test_equal_content_in_two_blocks_is_found_in_the_first() -> None:
    cache = PrefixCache()
    cache.put(0, b"x", 1)
    cache.put(0, b"x", 2)
    assert (found(cache, [b"x"]), 1 in cache, 2 in cache, len(cache)) == ([1], True, False, 1)
    cache.evict(2)
    assert found(cache, [b"x"]) == [1]
    cache.evict(1)
    assert found(cache, [b"x"]) == []


def test_dropped_content_is_not_found_again() -> None:
    cache = PrefixCache()
    cache.put(0, b"x", 1)
    cache.put(0, b"y", 2)
    cache.drop([b"unknown", b"x"])
    assert (found(cache, [b"x"]), found(cache, [b"y"]), 1 in cache, len(cache)) == ([], [2], False, 1)
    cache.check()


def test_each_change_of_the_cache_has_its_own_generation() -> None:
    """A look-up that is kept for a generation must not be taken for one of another content."""
    cache = PrefixCache()
    changes: list[Callable[[], object]] = [
        lambda: cache.put(0, b"x", 1),
        lambda: cache.evict(1),
        lambda: cache.put(0, b"y", 1),
        lambda: cache.drop([b"y"]),
        lambda: cache.put(0, b"z", 1),
        lambda: cache.clear(),
    ]
    seen = {cache.generation}
    for change in changes * 2:
        change()
        assert cache.generation not in seen
        seen.add(cache.generation)


def test_each_change_of_the_users_has_its_own_generation() -> None:
    pool = BlockPool(4)
    seen = {pool.generation}
    changes: list[Callable[[], object]] = [
        lambda: pool.allocate(1),
        lambda: pool.share([1]),
        lambda: pool.free([1]),
        lambda: pool.free([1]),
    ]
    for change in changes:
        change()
        assert pool.generation not in seen
        seen.add(pool.generation)


def test_a_chain_is_found_up_to_its_first_gap() -> None:
    cache = PrefixCache()
    for block, name in enumerate((b"a", b"b", b"d"), 1):
        cache.put(0, name, block)
    assert found(cache, [b"a", b"b", b"c", b"d"]) == [1, 2]


def test_free_and_used_blocks_are_all_blocks() -> None:
    pool = BlockPool(10)
    blocks = pool.allocate(4)
    assert (pool.num_free, pool.num_used, pool.usage) == (6, 4, 0.4)
    pool.free(blocks)
    assert (pool.num_free, pool.num_used) == (10, 0)
    pool.check_all_free()


def test_can_allocate_says_what_allocate_does() -> None:
    pool = BlockPool(2)
    assert pool.can_allocate(2)
    assert not pool.can_allocate(3)
    with pytest.raises(RuntimeError, match="cannot allocate 3 KV blocks: 2 are free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_freeing_what_is_not_in_use_is_an_error() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.free([block])
    with pytest.raises(RuntimeError, match=f"KV block {block} is freed twice"):
        pool.free([block])
    for foreign in (NULL_BLOCK, 3, -1):
        with pytest.raises(RuntimeError, match=r"is not one of 1\.\.2"):
            pool.free([foreign])
    assert pool.num_free == 2


def test_blocks_in_use_are_found_by_the_idle_check() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="1 of 2 KV blocks belong to no request"):
        pool.check_all_free()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
