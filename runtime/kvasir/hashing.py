"""Hashes of KV blocks: the keys of the prefix cache. Shared by frontend and engine.

The hash of a block covers its own tokens and, through the hash before it, everything that stands before them; so
equal hashes mean equal prefixes. The first block is chained to a *root* that holds whatever else the content of
all blocks depends on. Look-ups compare hashes and never tokens, hence 128 bits of BLAKE2b, for which no
collision can be found. There is no random seed: every process hashes the same tokens to the same bytes.

The frontend hashes a prompt once and sends the chain along (AddRequest.block_hashes); the engine goes on with it as
output tokens fill blocks.
"""

import time
from array import array
from hashlib import blake2b
from typing import Final

from kvasir.tokens import TOKEN_BYTES, to_wire

HASH_BYTES: Final = 16
BLOCKS_AT_ONCE: Final = 256
"""Blocks that `packed_chain` hashes without a pause: well under a millisecond."""
PAUSE_SECONDS: Final = 20e-6
"""Long enough for a thread that waits for the interpreter to get it, which sleep(0) is not."""

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


def chain(parent: bytes, token_ids: "array[int]", block_size: int) -> list[bytes]:
    """Return the hashes of the full blocks of these tokens; the first is chained to `parent`."""
    data = memoryview(to_wire(token_ids))
    width = block_size * TOKEN_BYTES
    hashes = []
    for place in range(0, len(data) // width * width, width):
        block = _BLOCK.copy()
        block.update(parent)
        block.update(data[place : place + width])
        parent = block.digest()
        hashes.append(parent)
    return hashes


def packed_chain(parent: bytes, token_ids: "array[int]", block_size: int) -> bytes:
    """Return the same hashes in one object; for long prompts, in a thread: others get their turn meanwhile."""
    parts = []
    for start in range(0, len(token_ids) // block_size * block_size, BLOCKS_AT_ONCE * block_size):
        if start:
            time.sleep(PAUSE_SECONDS)
        hashes = chain(parent, token_ids[start : start + BLOCKS_AT_ONCE * block_size], block_size)
        parts.append(b"".join(hashes))
        parent = hashes[-1]
    return b"".join(parts)


def extend_chain(hashes: list[bytes], root: bytes, token_ids: "array[int]", block_size: int) -> None:
    """Append the hashes of the full blocks that `hashes` does not reach yet."""
    start = len(hashes) * block_size
    if start + block_size <= len(token_ids):
        hashes += chain(hashes[-1] if hashes else root, token_ids[start:], block_size)


def split_chain(packed: bytes) -> list[bytes]:
    """Return the hashes that stand one after the other in `packed`."""
    return [packed[place : place + HASH_BYTES] for place in range(0, len(packed), HASH_BYTES)]


def chain_fits(packed: bytes, root: bytes, token_ids: "array[int]", block_size: int) -> bool:
    """Whether `packed`, which another process made, can be the chain of these tokens.

    The cost is one hash, whatever the length: the number of blocks, and the first block, which differs if the other
    side has another root, another block size or another algorithm.
    """
    if len(packed) != len(token_ids) // block_size * HASH_BYTES:
        return False
    return packed[:HASH_BYTES] == b"".join(chain(root, token_ids[:block_size], block_size))
