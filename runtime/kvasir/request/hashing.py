"""Hashes of KV blocks: the keys of the prefix cache, shared by frontend and engine.

A hash covers the tokens of a block and the hash before it, so equal hashes mean equal prefixes. Lookups do not
compare tokens, hence 128 bits of a cryptographic hash.
"""

import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from kvasir.request.params import SamplingParams
from kvasir.request.request_core import RequestCore, RequestKind
from kvasir.request.tokens import TOKEN_BYTES, to_wire

HASH_BYTES: Final = 16
BLOCKS_AT_ONCE: Final = 256
PAUSE_SECONDS: Final = 20e-6  # lets a waiting thread take the interpreter lock; sleep(0) does not

BLAKE2B: Final = "blake2b"
SHA256: Final = "sha256"

_HASH: Final = slice(HASH_BYTES)


class _Hash(Protocol):
    def copy(self) -> "_Hash": ...

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class _Algorithm:
    # copied: faster than a new hash
    root: _Hash
    block: _Hash


_ALGORITHMS: Final[Mapping[str, _Algorithm]] = MappingProxyType(
    {
        BLAKE2B: _Algorithm(
            root=blake2b(digest_size=HASH_BYTES, person=b"kvasir root"),
            block=blake2b(digest_size=HASH_BYTES, person=b"kvasir block"),
        ),
        SHA256: _Algorithm(root=sha256(b"kvasir root\0"), block=sha256(b"kvasir block\0")),
    }
)
HASH_ALGORITHMS: Final = tuple(_ALGORITHMS)


@dataclass(frozen=True, slots=True)
class BlockHashing:
    block_size: int
    algorithm: str = BLAKE2B


@dataclass(frozen=True, slots=True)
class ChainRoot:
    digest: bytes
    algorithm: str


def chain_root(cache_salt: str = "", *, adapter: str = "", model: str = "", algorithm: str = BLAKE2B) -> ChainRoot:
    """Return the root of a chain; requests with different roots share no block.

    `adapter`: its digest. `model`: fingerprint and data type. Raises KeyError for an unknown algorithm.
    """
    start = _ALGORITHMS[algorithm].root
    root = start.copy()
    # Tagged: a salt must not pass for an adapter.
    if cache_salt:
        root.update(b"cache_salt\0" + cache_salt.encode())
    digest = root.digest()[_HASH]
    for tag, value in ((b"adapter\0", adapter), (b"model\0", model)):
        if value:
            root = start.copy()
            root.update(tag + digest + value.encode())
            digest = root.digest()[_HASH]
    return ChainRoot(digest, algorithm)


def chain(parent: bytes, token_ids: "array[int]", block_size: int, algorithm: str = BLAKE2B) -> list[bytes]:
    data = memoryview(to_wire(token_ids))
    width = block_size * TOKEN_BYTES
    start = _ALGORITHMS[algorithm].block
    cut, hashes = _HASH, []
    for place in range(0, len(data) // width * width, width):
        block = start.copy()
        block.update(parent)
        block.update(data[place : place + width])
        parent = block.digest()[cut]
        hashes.append(parent)
    return hashes


def packed_chain(root: ChainRoot, token_ids: "array[int]", block_size: int, before: bytes = b"") -> bytes:
    """Return the chain in one object. `before`: the hashes of the blocks before these tokens."""
    parent = before[-HASH_BYTES:] or root.digest
    parts = []
    for start in range(0, len(token_ids) // block_size * block_size, BLOCKS_AT_ONCE * block_size):
        if start:
            time.sleep(PAUSE_SECONDS)
        some = token_ids[start : start + BLOCKS_AT_ONCE * block_size]
        hashes = chain(parent, some, block_size, root.algorithm)
        parts.append(b"".join(hashes))
        parent = hashes[-1]
    return b"".join(parts)


def extend_chain(
    hashes: list[bytes],
    root: ChainRoot,
    token_ids: "array[int]",
    block_size: int,
    keys: Callable[[int, int], bytes] | None = None,
) -> None:
    """Append the hashes of further full blocks.

    `keys(start, end)` returns what a block depends on besides its tokens, such as an image.
    """
    start = len(hashes) * block_size
    if start + block_size > len(token_ids):
        return
    parent = hashes[-1] if hashes else root.digest
    if keys is None:
        hashes += chain(parent, token_ids[start:], block_size, root.algorithm)
        return
    for place in range(start, len(token_ids) // block_size * block_size, block_size):
        key = keys(place, place + block_size)
        tokens = token_ids[place : place + block_size]
        parent = _keyed_hash(parent, tokens, key, root.algorithm)
        hashes.append(parent)


def _keyed_hash(parent: bytes, token_ids: "array[int]", key: bytes, algorithm: str) -> bytes:
    block = _ALGORITHMS[algorithm].block.copy()
    block.update(parent)
    block.update(to_wire(token_ids))
    block.update(key)  # no tag: the bytes before have a fixed length
    return block.digest()[_HASH]


def split_chain(packed: bytes) -> list[bytes]:
    return [packed[place : place + HASH_BYTES] for place in range(0, len(packed), HASH_BYTES)]


def chain_fits(packed: bytes, root: ChainRoot, token_ids: "array[int]", block_size: int) -> bool:
    """Return whether `packed` can be the chain of these tokens."""
    if len(packed) != len(token_ids) // block_size * HASH_BYTES:
        return False
    # Another root, block size or algorithm changes the first block.
    return packed[:HASH_BYTES] == packed_chain(root, token_ids[:block_size], block_size)


DIGEST_BYTES: Final = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SamplingParams).decode


def request_digest(prompt_tokens: bytes | memoryview, core: RequestCore) -> bytes:
    """Return the digest of all fields but the seed."""
    digest = blake2b(prompt_tokens, digest_size=DIGEST_BYTES, person=b"kvasir request")
    # Frontends draw a seed for each request without one.
    received = core.params if core.params.seed == 0 else msgspec.structs.replace(core.params, seed=0)
    # Decoded as in an engine: 0 and 0.0 differ in bytes.
    digest.update(_encode(_decode(_encode(received))))
    if core.constraint is not None:
        digest.update(_encode(core.constraint))
    if core.kind is not RequestKind.GENERATE:
        digest.update(core.kind.encode())
    if core.pooling is not None:
        digest.update(_encode(core.pooling))
    if core.adapter is not None:
        digest.update(core.adapter.digest.encode())
    return digest.digest()
