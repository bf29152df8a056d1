"""The messages between two engines that hand KV blocks over: msgspec structs in msgpack.

FetchBlocks is answered with BlocksRefused, or with Blocks until one is `last`; their second frame has the bytes. At
most WINDOW messages are on their way: MoreBlocks asks for another one. A KV class has one version of Kvasir.
"""

import zlib
from typing import Final

import msgspec

CHUNK_BYTES: Final = 8 * 2**20  # of blocks in one message, or one larger block
WINDOW: Final = 2
MAX_FETCH_BLOCKS: Final = 512  # of one FetchBlocks; the step loop looks up so many in less than a millisecond


class FetchBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks for the blocks with these hashes, as far as they are cached without a gap."""

    kv_class: str  # an engine of another class refuses
    hashes: bytes  # of neighbouring blocks of a prompt, in their order; see kvasir.request.hashing


class MoreBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks for another Blocks."""


class FetchDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ends the session."""


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    checksums: list[int]  # see `checksum`
    last: bool  # these were the last ones asked for, or the next one is not in the cache


class BlocksRefused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    reason: str


_Asking = FetchBlocks | MoreBlocks | FetchDone
_Answering = Blocks | BlocksRefused
_encoder: Final = msgspec.msgpack.Encoder()
_asking: Final[msgspec.msgpack.Decoder[_Asking]] = msgspec.msgpack.Decoder(_Asking)
_answering: Final[msgspec.msgpack.Decoder[_Answering]] = msgspec.msgpack.Decoder(_Answering)


def encode(message: _Asking | _Answering) -> bytes:
    return _encoder.encode(message)


def decode_asking(frame: bytes) -> _Asking:
    return _asking.decode(frame)


def decode_answering(frame: bytes) -> _Answering:
    return _answering.decode(frame)


def checksum(block_hash: bytes, content: memoryview) -> int:
    """Return a checksum of the bytes and the hash, so that a misplaced block is found."""
    return zlib.crc32(content, zlib.crc32(block_hash))
