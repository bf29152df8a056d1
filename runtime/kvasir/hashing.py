"""Hashes of KV blocks: the keys of the prefix cache. Shared by frontend and engine.

The hash of a block covers its own tokens and, through the hash before it, everything that stands before them; so
equal hashes mean equal prefixes. The first block is chained to a *root* that holds whatever else the content of
all blocks depends on. Look-ups compare hashes and never tokens, hence 128 bits of BLAKE2b, for which no
collision can be found. There is no random seed: every process hashes the same tokens to the same bytes.

The frontend hashes a prompt once and sends the chain along (AddRequest.block_hashes); the engine goes on with it as
output tokens fill blocks.
"""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 16
TOKEN_BYTES: Final = 4

# Copies of these are several times faster than new ones. `person` keeps the two kinds of hash apart.
_ROOT: Final = blake2b(digest_size=HASH_BYTES, person=b"kvasir root")
_BLOCK: Final = blake2b(digest_size=HASH_BYTES, person=b"kvasir block")


def chain_root(cache_salt: str = "") -> bytes:
    """What the first block of a request is chained to: requests of different salts share no block."""
    root = _ROOT.copy()
    if cache_salt:
        # Tagged: the value of one kind of key must never pass for that of another.
        root.update(b"cache_salt\0" + cache_salt.encode())
    return root.digest()


def extend_chain(hashes: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int) -> None:
    """Append the hashes of the full blocks that `hashes` does not reach yet; token ids are 0 to 2**32 - 1."""
    start, end = len(hashes) * block_size, len(token_ids) // block_size * block_size
    if start >= end:
        return
    tokens = array("I", token_ids[start:end])
    if sys.byteorder == "big":
        tokens.byteswap()
    data = memoryview(tokens).cast("B")
    parent = hashes[-1] if hashes else root
    width = block_size * TOKEN_BYTES
    for place in range(0, len(data), width):
        block = _BLOCK.copy()
        block.update(parent)
        block.update(data[place : place + width])
        parent = block.digest()
        hashes.append(parent)


def chain_fits(hashes: Sequence[bytes], root: bytes, token_ids: Sequence[int], block_size: int) -> bool:
    """Return whether `hashes` of another process can be the chain of these tokens.

    The cost is one hash, whatever the length: the number of blocks, the size of the hashes, and the first block,
    which differs where the other side has another root, another block size or another algorithm.
    """
    if len(hashes) != len(token_ids) // block_size or any(len(each) != HASH_BYTES for each in hashes):
        return False
    first: list[bytes] = []
    extend_chain(first, root, token_ids[:block_size], block_size)
    return list(hashes[:1]) == first
