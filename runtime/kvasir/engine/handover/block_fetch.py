"""BlockFetch: fetches KV blocks from another engine, in the thread of the exchange.

Blocks arrive in the order of the prompt. If a fetch fails, the verified ones are kept: a shorter prefix is useful.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq

from kvasir.engine.handover.messages import (
    MAX_FETCH_BLOCKS,
    Blocks,
    FetchBlocks,
    FetchDone,
    MoreBlocks,
    checksum,
    decode_answering,
    encode,
)
from kvasir.wire.client_socket import ClientSocket
from kvasir.wire.keys import LinkKeys
from kvasir.wire.reactor import Reactor
from kvasir.worker.kv_memory.block_bytes import BlockBytes

_FETCH_DONE_LINGER_SECONDS: Final = 0.2


@dataclass(frozen=True)
class FetchLimits:
    """Limits after which the rest of the blocks is computed."""

    first_seconds: float = 5.0  # until the first blocks: they are pinned between two steps
    stall_seconds: float = 2.0  # between two messages
    bytes_per_second: float = 20 * 2**20
    connect_seconds: float = 2.0  # network policies drop packets silently


DEFAULT_LIMITS: Final = FetchLimits()


@dataclass(frozen=True)
class FetchOrder:
    number: int
    endpoint: str
    kv_class: str
    hashes: Sequence[bytes]
    block_ids: Sequence[int]  # to write to


class BlockFetch:
    """One fetch; it calls `ended` once, with the number of blocks and a problem or ""."""

    def __init__(
        self,
        reactor: Reactor,
        order: FetchOrder,
        memory: BlockBytes,
        keys: LinkKeys | None,
        limits: FetchLimits,
        ended: Callable[["BlockFetch", int, str], None],
    ) -> None:
        # `keys`: None for an unencrypted endpoint on this machine
        self.order = order
        self._reactor = reactor
        self._keys = keys
        self._memory = memory
        self._limits = limits
        self._ended = ended
        self._is_over = False
        self._place = 0  # blocks written
        self._asked = 0
        now = time.monotonic()
        num_bytes = len(order.hashes) * memory.block_bytes
        self._end = now + limits.first_seconds + num_bytes / limits.bytes_per_second
        self._due = now + limits.first_seconds
        self._socket: ClientSocket | None = None

    @property
    def due(self) -> float:
        """Return when to call `expire`, on the monotonic clock."""
        return min(self._due, self._end)

    def start(self) -> None:
        try:
            self._socket = ClientSocket(
                self._reactor,
                self.order.endpoint,
                self._keys,
                self._on_frames,
                self._on_end,
                connect_seconds=self._limits.connect_seconds,
                copy=False,
            )
            self._ask()
        except zmq.ZMQError as error:
            self._finish(f"{self.order.endpoint} cannot be connected to: {error}")

    def expire(self) -> None:
        if time.monotonic() >= self.due:
            self._finish("the other engine is too slow")

    def _on_end(self, failure: str | None) -> None:
        at = self.order.endpoint
        lost = f"there is no connection to {at}: it has ended, or a network policy drops it"
        self._finish(failure or ("the connection broke" if self._place else lost))

    def close(self, reason: str) -> None:
        self._finish(reason)

    def _ask(self) -> None:
        hashes = self.order.hashes[self._asked : self._asked + MAX_FETCH_BLOCKS]
        self._asked += len(hashes)
        self._send(FetchBlocks(self.order.kv_class, b"".join(hashes)))

    def _send(self, message: FetchBlocks | MoreBlocks | FetchDone) -> None:
        if self._socket is not None:
            self._socket.send([encode(message)])

    def _on_frames(self, frames: list[zmq.Frame]) -> None:
        try:
            message = decode_answering(frames[0].bytes)
        except msgspec.MsgspecError as error:
            self._finish(f"the other engine sent a malformed frame: {error}")
            return
        if not isinstance(message, Blocks):
            self._finish(message.reason)
        elif problem := self._store(message, frames[1].buffer if len(frames) > 1 else memoryview(b"")):
            self._finish(problem)
        elif not message.last:
            self._send_more()
        elif self._place == self._asked < len(self.order.hashes):
            self._ask_further()
        else:
            self._finish("")

    def _send_more(self) -> None:
        self._due = time.monotonic() + self._limits.stall_seconds
        self._send(MoreBlocks())

    def _ask_further(self) -> None:
        self._due = time.monotonic() + self._limits.first_seconds
        self._ask()

    def _store(self, message: Blocks, content: memoryview) -> str:
        """Write the blocks up to the first wrong one; return the problem or ""."""
        count, size = len(message.checksums), self._memory.block_bytes
        if len(content) != count * size or self._place + count > self._asked:
            return f"the other engine sent {count} blocks in {len(content)} bytes, not of {size} bytes each"
        sound = 0
        for expected in message.checksums:
            block_hash = self.order.hashes[self._place + sound]
            if checksum(block_hash, content[sound * size : (sound + 1) * size]) != expected:
                break
            sound += 1
        self._memory.write(self.order.block_ids[self._place : self._place + sound], content[: sound * size])
        self._place += sound
        return "" if sound == count else "a block does not match its checksum"

    def _finish(self, problem: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        if problem:
            with contextlib.suppress(zmq.ZMQError):  # the peer notices the end anyway
                self._send(FetchDone())
        if self._socket is not None:
            self._socket.close(_FETCH_DONE_LINGER_SECONDS)
        self._ended(self, self._place, problem)
