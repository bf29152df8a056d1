"""BlockServer: sends KV blocks to other engines, in the thread of the exchange.

A session serves one FetchBlocks: the step loop pins the cached blocks, the server sends them in parts. A peer that
stops reading loses its session.
"""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zmq

from kvasir.engine.handover.messages import (
    CHUNK_BYTES,
    MAX_FETCH_BLOCKS,
    WINDOW,
    Blocks,
    BlocksRefused,
    FetchBlocks,
    HandOverEvent,
    MoreBlocks,
    PinReleased,
    PinWanted,
    checksum,
    decode_asking,
    encode,
)
from kvasir.process.seldom_log import SeldomLog
from kvasir.request.hashing import HASH_BYTES, split_chain
from kvasir.wire.server_socket import ServerSocket
from kvasir.worker.kv_memory.block_bytes import BlockBytes

SESSION_SECONDS: Final = 5.0
MAX_SESSIONS: Final = 16

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Session:
    number: int
    peer: bytes
    hashes: list[bytes]
    block_ids: Sequence[int] | None = None  # None until pinned
    place: int = 0  # blocks sent
    credit: int = WINDOW  # messages that may be sent
    last_seen: float = field(default_factory=time.monotonic)


class BlockServer:
    def __init__(
        self,
        socket: ServerSocket,
        memory: BlockBytes,
        kv_class: str,
        deliver: Callable[[HandOverEvent], None],
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        self._socket = socket
        self._memory = memory
        self._kv_class = kv_class
        self._deliver = deliver
        self._session_seconds = session_seconds
        self._sessions: dict[bytes, _Session] = {}
        self._numbers = itertools.count(1)
        self._seldom = SeldomLog(log)

    def receive(self) -> None:
        while True:
            try:
                frames = self._socket.router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)

    def pinned(self, number: int, block_ids: Sequence[int]) -> None:
        # the session may have ended
        for session in self._sessions.values():
            if session.number == number:
                session.block_ids = block_ids
                session.last_seen = time.monotonic()
                self._send_parts(session)
                return

    def next_due(self) -> float:
        """Return when to call `expire`, on the monotonic clock."""
        waiting = [each.last_seen for each in self._sessions.values() if each.block_ids is not None]
        return min(waiting, default=float("inf")) + self._session_seconds

    def expire(self) -> None:
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if session.block_ids is not None and now - session.last_seen >= self._session_seconds:
                self._seldom.warning("an engine stopped reading the KV blocks that it had asked for")
                self._end(session)

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self._end(session)

    def _on_frames(self, frames: list[bytes]) -> None:
        peer = frames[0]
        try:
            message = decode_asking(frames[-1])
        except msgspec.MsgspecError as error:
            self._seldom.warning(f"a peer of the KV hand-over sent a malformed frame: {error}")
            return
        session = self._sessions.get(peer)
        if isinstance(message, FetchBlocks):
            if session is not None:
                self._end(session)
            self._begin(peer, message)
        elif session is not None and isinstance(message, MoreBlocks):
            session.credit = min(WINDOW, session.credit + 1)
            session.last_seen = time.monotonic()
            self._send_parts(session)
        elif session is not None:
            self._end(session)

    def _begin(self, peer: bytes, message: FetchBlocks) -> None:
        refusal = self._refusal(message)
        if refusal:
            self._seldom.info(f"an engine asked for KV blocks and was refused: {refusal}")
            self._send([peer, encode(BlocksRefused(refusal))])
            return
        session = _Session(next(self._numbers), peer, split_chain(message.hashes))
        self._sessions[peer] = session
        self._deliver(PinWanted(session.number, session.hashes))

    def _refusal(self, message: FetchBlocks) -> str:
        if message.kv_class != self._kv_class:
            return "the engines are of different KV classes (model, version, precision or layout)"
        if len(message.hashes) % HASH_BYTES or len(message.hashes) > MAX_FETCH_BLOCKS * HASH_BYTES:
            return f"{len(message.hashes)} bytes are not the hashes of up to {MAX_FETCH_BLOCKS} blocks"
        if len(self._sessions) >= MAX_SESSIONS:
            return f"the engine sends blocks to {MAX_SESSIONS} others already"
        return ""

    def _send_parts(self, session: _Session) -> None:
        ids = session.block_ids
        most = max(1, CHUNK_BYTES // self._memory.block_bytes)
        while ids is not None and session.credit > 0:
            part = ids[session.place : session.place + most]
            content = self._memory.read(part)
            hashes = session.hashes[session.place : session.place + len(part)]
            session.place += len(part)
            session.credit -= 1
            is_last = session.place >= len(ids)
            header = encode(Blocks(self._checksums(hashes, content), is_last))
            if not self._send([session.peer, header, content]) or is_last:
                self._end(session)
                return

    def _checksums(self, hashes: list[bytes], content: memoryview) -> list[int]:
        size = self._memory.block_bytes
        return [
            checksum(block_hash, content[place * size : (place + 1) * size])
            for place, block_hash in enumerate(hashes)
        ]

    def _send(self, frames: list[Any]) -> bool:
        """Return False if the peer has gone, or has not read earlier messages."""
        return self._socket.send(frames, copy=False) is None

    def _end(self, session: _Session) -> None:
        if self._sessions.pop(session.peer, None) is not None:
            self._deliver(PinReleased(session.number))
