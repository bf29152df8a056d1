"""The messages by which an engine fetches KV blocks from another: msgspec structs in msgpack.

FetchBlocks gets BlocksRefused, or Blocks until one is `last`, with the bytes in a second frame. WINDOW of these are
sent at once; MoreBlocks asks for another one.
"""

import zlib
from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(frozen=True)
class PinWanted:
    """Another engine asks for blocks, which must not be reused until PinReleased."""

    session: int
    hashes: list[bytes]


@dataclass(frozen=True)
class PinReleased:
    session: int


@dataclass(frozen=True)
class FetchEnded:
    """The first `num_blocks` blocks have arrived and are verified."""

    fetch: int
    num_blocks: int
    problem: str  # why they are not all; "" if the source has no more


HandOverEvent = PinWanted | PinReleased | FetchEnded


CHUNK_BYTES: Final = 8 * 2**20  # per message, or one larger block
WINDOW: Final = 2
MAX_FETCH_BLOCKS: Final = 512  # looked up in less than a millisecond


class FetchBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks for the blocks with these hashes, up to the first that is not cached."""

    kv_class: str  # must be the receiver's
    hashes: bytes  # consecutive; see kvasir.request.hashing


class MoreBlocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Asks for another Blocks."""


class FetchDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Ends the session."""


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag=True):
    checksums: list[int]
    last: bool  # of those asked for, or the next one is not cached


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
    """Return a checksum that also finds misplaced blocks."""
    return zlib.crc32(content, zlib.crc32(block_hash))
