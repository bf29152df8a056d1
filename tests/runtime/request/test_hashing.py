import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.request.hashing import (
    HASH_ALGORITHMS,
    HASH_BYTES,
    SHA256,
    ChainRoot,
    chain_fits,
    chain_root,
    extend_chain,
    packed_chain,
    split_chain,
)
from kvasir.request.tokens import token_array

ROOT = chain_root()
Keys = Callable[[int, int], bytes] | None
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def chain(
    token_ids: list[int], block_size: int = 4, salt: str = "", root: ChainRoot | None = None, keys: Keys = None
) -> list[bytes]:
    hashes: list[bytes] = []
    extend_chain(hashes, root or chain_root(salt), token_array(token_ids), block_size, keys)
    return hashes


def test_only_full_blocks_are_hashed() -> None:
    assert [len(chain([7] * count)) for count in (0, 1, 3, 4, 5, 8)] == [0, 0, 0, 1, 1, 2]
    assert all(len(each) == HASH_BYTES for each in chain([7] * 8))


@given(tokens, tokens, st.integers(1, 5))
def test_hashes_are_equal_exactly_as_far_as_the_prefixes_are(
    one: list[int], other: list[int], block_size: int
) -> None:
    for place, (mine, yours) in enumerate(zip(chain(one, block_size), chain(other, block_size), strict=False)):
        end = (place + 1) * block_size
        assert (mine == yours) == (one[:end] == other[:end])


@given(tokens, st.integers(0, 40), st.integers(1, 5))
def test_a_chain_that_grows_is_the_chain_of_the_whole(token_ids: list[int], cut: int, block_size: int) -> None:
    hashes: list[bytes] = []
    extend_chain(hashes, ROOT, token_array(token_ids[:cut]), block_size)
    extend_chain(hashes, ROOT, token_array(token_ids), block_size)
    assert hashes == chain(token_ids, block_size)


@given(tokens, st.integers(1, 5), st.integers(1, 4))
def test_a_packed_chain_is_the_chain_in_one_object(
    token_ids: list[int], block_size: int, blocks_at_once: int
) -> None:
    with patch("kvasir.request.hashing.BLOCKS_AT_ONCE", blocks_at_once):
        packed = packed_chain(ROOT, token_array(token_ids), block_size)
    assert split_chain(packed) == chain(token_ids, block_size)


def test_equal_blocks_at_different_places_differ() -> None:
    assert len(set(chain([7] * 40))) == 10


def test_a_salt_changes_every_hash() -> None:
    plain, one, other = chain([7] * 8), chain([7] * 8, salt="a"), chain([7] * 8, salt="b")
    assert len({*plain, *one, *other}) == 6
    assert chain([7] * 8, salt="a") == one


@given(st.lists(st.sampled_from(["", "a", "adapter", "\0", "model\0a"]), min_size=3, max_size=3))
def test_a_root_covers_salt_adapter_and_model_apart(values: list[str]) -> None:
    salt, adapter, model = values
    asked = {
        (salt, adapter, model),
        (model, adapter, salt),
        (adapter, salt, model),
        (salt, "", model),
    }
    for algorithm in HASH_ALGORITHMS:
        roots = {chain_root(a, adapter=b, model=c, algorithm=algorithm).digest for a, b, c in asked}
        assert len(roots) == len(asked)


def test_algorithms_share_no_hash() -> None:
    chains = [chain([7] * 40, root=chain_root(algorithm=algorithm)) for algorithm in HASH_ALGORITHMS]
    for one, other in combinations(chains, 2):
        assert not {*one} & {*other}
    assert all(len(each) == HASH_BYTES for hashes in chains for each in hashes)


@given(tokens, st.integers(0, 40), st.integers(1, 5))
def test_sha256_chains_grow_and_pack_alike(token_ids: list[int], cut: int, block_size: int) -> None:
    root = chain_root(algorithm=SHA256)
    hashes: list[bytes] = []
    extend_chain(hashes, root, token_array(token_ids[:cut]), block_size)
    extend_chain(hashes, root, token_array(token_ids), block_size)
    assert b"".join(hashes) == packed_chain(root, token_array(token_ids), block_size)
    assert chain_fits(b"".join(hashes), root, token_array(token_ids), block_size)


@given(tokens, st.integers(1, 5), st.dictionaries(st.integers(0, 40), st.sampled_from([b"image a", b"image b"])))
def test_a_key_changes_its_block_and_all_later_ones(
    token_ids: list[int], block_size: int, items: dict[int, bytes]
) -> None:
    """`items`: by the place of the token that stands for an item, the hash of the item."""

    def keys(start: int, end: int) -> bytes:
        return b"".join(items.get(place, b"") for place in range(start, end))

    plain, keyed = chain(token_ids, block_size), chain(token_ids, block_size, keys=keys)
    first = min(items, default=len(token_ids)) // block_size
    assert keyed[:first] == plain[:first]
    assert not {*keyed[first:]} & {*plain[first:]}
    other = chain(token_ids, block_size, keys=lambda start, end: keys(start, end).replace(b" a", b" c"))
    assert (other == keyed) == (b"image a" not in keys(0, len(keyed) * block_size))


def test_a_keyed_chain_that_grows_is_the_chain_of_the_whole() -> None:
    hashes = chain([7] * 9, keys=lambda start, end: b"%d" % end)
    extend_chain(hashes, ROOT, token_array([7] * 20), 4, lambda start, end: b"%d" % end)
    assert hashes == chain([7] * 20, keys=lambda start, end: b"%d" % end)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("blake2b", "b5195efa862455fbddfd05d89cdbab02 358683322ccfa39c934169f6bb7eb2c3"),
        ("sha256", "b422fd6fb467276ecbc2ffdc05eb123f c9f2659a306f5bc0dfdc857ad0cadbf9"),
    ],
)
def test_every_process_hashes_alike(algorithm: str, expected: str) -> None:
    """The bytes are part of the link between versions and machines: they must never change."""
    script = (
        "import sys; from kvasir.request.hashing import *; from kvasir.request.tokens import token_array; "
        "h = packed_chain(chain_root('tenant', algorithm=sys.argv[1]), token_array(range(70000, 70032)), 16); "
        "print(*(each.hex() for each in split_chain(h)))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script, algorithm],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert printed == {expected}


def test_hashing_needs_no_torch() -> None:
    script = "import sys, kvasir.request.hashing; print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]


def test_a_chain_from_elsewhere_is_taken_only_if_it_fits() -> None:
    token_ids = list(range(40))
    good = chain(token_ids)
    assert chain_fits(b"".join(good), ROOT, token_array(token_ids), 4)
    assert chain_fits(b"", ROOT, token_array(token_ids[:3]), 4)
    bad = {
        "too short": good[:-1],
        "too long": [*good, good[-1]],
        "none": [],
        "of blocks of 8": chain(token_ids, 8),
        "of another salt": chain(token_ids, salt="a"),
        "of short hashes": [each[:8] for each in good],
    }
    for why, hashes in bad.items():
        assert not chain_fits(b"".join(hashes), ROOT, token_array(token_ids), 4), why


def test_a_chain_of_another_block_size_does_not_fit() -> None:
    """17 tokens in blocks of 16 and of 17 are one block each."""
    token_ids = list(range(17))
    assert not chain_fits(b"".join(chain(token_ids, 16)), ROOT, token_array(token_ids), 17)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_what_is_no_token_is_not_hashed(token_id: int) -> None:
    with pytest.raises(OverflowError):
        chain([token_id] * 4)
