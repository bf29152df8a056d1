"""BlackBox: names the requests that the engine computes, in a file that survives the process.

The successor reports them to the frontends (docs/design/poison.md). The file is mapped and not synced: the kernel
keeps writes of a killed process.
"""

import fcntl
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.step_results import StepRows
from kvasir.link.protocol import FailedStep

log = logging.getLogger(__name__)

SLOT_BYTES: Final = 64 * 2**10  # about 900 requests; beyond it ids are left out, and then requests
FILE_BYTES: Final = 2 * SLOT_BYTES  # written in turn: one slot is always whole

_HEADER: Final = struct.Struct("<4sIQI")  # magic, payload bytes, write number, checksum
_MAGIC: Final = b"kvb1"
_MAX_PAYLOAD_BYTES: Final = SLOT_BYTES - _HEADER.size
_MAX_DIGESTS: Final = _MAX_PAYLOAD_BYTES // 32

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FailedStep)


class BlackBox:
    def __init__(self, incarnation: str, file: "BoxFile | None" = None) -> None:
        self._incarnation = incarnation
        self._file = file
        # written last; None keeps the predecessor's
        self._requests: list[EngineRequest] | None = None
        self.step = FailedStep(incarnation)  # in flight

    def note(self, steps: Iterable[StepRows]) -> None:
        """Write the requests of these steps if they have changed. Call it before the last step is computed."""
        requests = [request for rows in steps for request, _ in rows]
        if requests != self._requests:
            self._write(requests)

    def clear(self) -> None:
        if self._requests != []:
            self._write([])

    def _write(self, requests: list[EngineRequest]) -> None:
        self._requests = requests
        self.step = FailedStep(self._incarnation, tuple([request.named for request in requests]))
        if self._file is not None:
            self._file.write(self.step)


class BoxFile:
    """The file of one live process. Raises OSError if it is locked or not writable."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, FILE_BYTES)  # else a full disk ends the process later
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor  # holds the lock
        found = [_read_slot(self._map, offset) for offset in (0, SLOT_BYTES)]
        # `last` may be from an earlier process; None if no slot is whole
        self._number, self.last = max(found, key=lambda each: each[0])

    def write(self, step: FailedStep) -> None:
        payload = _encoder.encode(step)
        if len(payload) > _MAX_PAYLOAD_BYTES:
            payload = _encoder.encode(_without_ids(step))
        self.last = step
        self._number += 1
        offset = self._number % 2 * SLOT_BYTES
        start = offset + _HEADER.size
        self._map[start : start + len(payload)] = payload
        _HEADER.pack_into(self._map, offset, _MAGIC, len(payload), self._number, _checksum(payload, self._number))

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)


def open_box(path: str | None) -> BoxFile | None:
    if path is None:
        return None
    try:
        return BoxFile(Path(path))
    except OSError as error:
        log.warning(
            "the black box %s cannot be used (%s): if this engine is killed, frontends cannot find out which "
            "request was the cause",
            path,
            error.strerror or error,
        )
        return None


def _read_slot(memory: mmap.mmap, offset: int) -> tuple[int, FailedStep | None]:
    magic, size, number, checksum = _HEADER.unpack_from(memory, offset)
    start = offset + _HEADER.size
    if magic != _MAGIC or size > _MAX_PAYLOAD_BYTES:
        return 0, None
    payload = memory[start : start + size]
    if _checksum(payload, number) != checksum:
        return 0, None
    try:
        return number, _decoder.decode(payload)
    except msgspec.DecodeError:
        return 0, None


def _checksum(payload: bytes, number: int) -> int:
    return zlib.crc32(payload, zlib.crc32(number.to_bytes(8, "little")))


def _without_ids(step: FailedStep) -> FailedStep:
    replace = msgspec.structs.replace
    few = tuple(replace(request, request_id="") for request in step.requests[:_MAX_DIGESTS])
    return FailedStep(step.incarnation, few)
