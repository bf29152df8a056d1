"""BlackBox: names the requests that the engine computes, in a file that survives the process.

The successor of a killed engine reads it and reports the requests to the frontends (docs/design/poison.md). The
file is mapped into memory and not synced: a write is a copy, which the kernel keeps however the process ends. Two
slots with checksums are written in turn, so one of them is always whole.
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

from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.step_results import StepRows
from kvasir.link.protocol import FailedStep

log = logging.getLogger(__name__)

SLOT_BYTES: Final = 64 * 2**10
"""About 900 requests with ids of 40 characters. Beyond that the ids are left out, and then requests."""
FILE_BYTES: Final = 2 * SLOT_BYTES

_HEADER: Final = struct.Struct("<4sIQI")  # magic, bytes of the payload, number of the write, checksum
_MAGIC: Final = b"kvb1"
_MAX_PAYLOAD_BYTES: Final = SLOT_BYTES - _HEADER.size
_MAX_DIGESTS: Final = _MAX_PAYLOAD_BYTES // 32

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FailedStep)


class BlackBox:
    def __init__(self, incarnation: str, file: "BoxFile | None" = None) -> None:
        self._incarnation = incarnation
        self._file = file
        # the last ones written; None keeps the predecessor's until the first write
        self._requests: list[EngineRequest] | None = None
        self.step = FailedStep(incarnation)  # the requests of the steps in flight

    def note(self, steps: Iterable[StepRows]) -> None:
        """Write the requests of these steps, if they have changed, before the last step is computed."""
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
    """The file of one engine at a time. Raises OSError if it is not writable or a live process has it."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, FILE_BYTES)  # a full disk would end the process at a later write
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor  # holds the lock as long as the process lives
        found = [_read_slot(self._map, offset) for offset in (0, SLOT_BYTES)]
        # `last`: the content, also of an earlier process; None if no slot is whole
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
