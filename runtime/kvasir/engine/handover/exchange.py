"""Exchange: the thread with the sockets for KV blocks, to and from other engines.

It copies blocks while the step loop runs, which decides on them: it gets HandOverEvents and calls `pinned` and
`fetch`.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Final

import msgspec

from kvasir.config.options import ConfigError, flag_of
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import HAND_OVER_AUTO, HAND_OVER_OFF, EngineConfig
from kvasir.engine.handover.block_fetch import DEFAULT_LIMITS, BlockFetch, FetchLimits, FetchOrder
from kvasir.engine.handover.block_server import SESSION_SECONDS, BlockServer
from kvasir.engine.handover.messages import FetchEnded, HandOverEvent
from kvasir.executor.executor import Executor
from kvasir.layers.kv import FullAttention, KVCacheConfig
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import MAX_IPC_PATH, LinkAddress, parse_address, require_keys
from kvasir.wire.keys import LinkKeys, load_shared_keys
from kvasir.wire.reactor import Reactor
from kvasir.wire.server_socket import ServerSocket
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir_contract.endpoints import KV_HAND_OVER_PORT
from kvasir_contract.environment import POD_IP

CLOSE_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 3600.0

log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES: Final = 2**16  # FetchBlocks has 8 KiB
_HANDSHAKE_MS: Final = 3000  # until a connection without a handshake is closed


class Exchange:
    """Any thread may call the methods; only `close` waits."""

    def __init__(
        self,
        memory: BlockBytes,
        kv_class: str,
        keys: LinkKeys | None,
        deliver: Callable[[HandOverEvent], None],
        *,
        limits: FetchLimits = DEFAULT_LIMITS,
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        # `deliver` is called in the exchange's thread
        self._memory = memory
        self._kv_class = kv_class
        self._keys = keys
        self._deliver = deliver
        self._limits = limits
        self._session_seconds = session_seconds
        self._reactor = Reactor()
        self._socket: ServerSocket | None = None
        self._path: Path | None = None  # ZMQ does not remove Unix sockets
        self._server: BlockServer | None = None
        self._fetches: set[BlockFetch] = set()
        self._stopped = False
        self._seldom = SeldomLog(log)
        self._thread = threading.Thread(target=self._run, name="kv-exchange", daemon=True)

    def listen(self, text: str) -> str:
        """Serve blocks at this address, before `start`; return it with the real port. Raises ConfigError."""
        address = parse_address(text, flag_of("kv_hand_over"))
        require_keys(address, self._keys is not None)
        if address.host in ("*", "0.0.0.0", "::"):
            raise ConfigError(f"{address.flag}: give an address at which other engines reach this one")
        server = self._socket = ServerSocket(
            self._reactor.context,
            address,
            self._keys,
            "client.secret of this engine",
            max_message_bytes=_MAX_REQUEST_BYTES,  # ZMQ keeps messages of unknown clients until the handshake fails
            handshake_ms=_HANDSHAKE_MS,
        )
        self._path = Path(address.path) if address.is_ipc else None
        self._inode = self._path.stat().st_ino if self._path is not None else 0
        self._server = BlockServer(server, self._memory, self._kv_class, self._deliver, self._session_seconds)
        self._reactor.watch(server.router, self._server.receive)
        for socket, handle in server.readers:
            self._reactor.read(socket, handle)
        return server.address

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._reactor.post(self._stop)
            self._thread.join(CLOSE_SECONDS)
        elif self._thread.ident is None:
            self._close_sockets()

    def pinned(self, session: int, block_ids: Sequence[int]) -> None:
        """Send these blocks, which are pinned until PinReleased."""
        if self._server is not None:
            self._reactor.post(partial(self._server.pinned, session, block_ids))

    def fetch(self, number: int, source: str, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Fetch blocks from the engine at `source`. FetchEnded follows."""
        self._reactor.post(partial(self._fetch, number, source, hashes, block_ids))

    def _fetch(self, number: int, source: str, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        try:
            address = parse_address(source)
            require_keys(address, self._keys is not None)
            order = FetchOrder(number, address.endpoint(), self._kv_class, hashes, block_ids)
            keys = None if address.is_ipc else self._keys
            fetch = BlockFetch(self._reactor, order, self._memory, keys, self._limits, self._on_ended)
        except ConfigError as error:
            self._deliver(FetchEnded(number, 0, str(error)))
            return
        self._fetches.add(fetch)
        fetch.start()

    def _on_ended(self, fetch: BlockFetch, num_blocks: int, problem: str) -> None:
        self._fetches.discard(fetch)
        self._deliver(FetchEnded(fetch.order.number, num_blocks, problem))

    # --------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._reactor.wait(self._next_due() - time.monotonic())
                self._expire()
            except Exception:
                log.exception("the KV hand-over failed to handle an event")
                time.sleep(1.0)  # prevents a busy loop
        self._close_sockets()

    def _next_due(self) -> float:
        due = [fetch.due for fetch in self._fetches]
        if self._server is not None:
            due.append(self._server.next_due())
        return min([*due, time.monotonic() + IDLE_SECONDS])

    def _expire(self) -> None:
        if self._server is not None:
            self._server.expire()
        for fetch in list(self._fetches):
            fetch.expire()

    def _stop(self) -> None:
        self._stopped = True

    def _close_sockets(self) -> None:
        for fetch in list(self._fetches):
            fetch.close("this engine ends")
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        if self._path is not None:
            with contextlib.suppress(OSError):  # a successor may own the path
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()
        self._reactor.close()


def kv_class(fingerprint: str, numerics: str, cache: KVCacheConfig, layout: str, hash_algorithm: str) -> str:
    """Return the class of engines that may exchange KV blocks.

    It covers all that a block and its hash depend on besides tokens.
    """
    facts = (fingerprint, numerics, cache.groups, layout, hash_algorithm)
    return blake2b(msgspec.msgpack.encode(facts), digest_size=16).hexdigest()


_LOOPBACK: Final = "tcp://127.0.0.1:0"


def start_exchange(
    config: EngineConfig,
    incarnation: str,
    executor: Executor,
    cache: KVCacheConfig,
    kv_class_of: Callable[[str], str],
    deliver: Callable[[HandOverEvent], None],
) -> tuple[Exchange, str] | None:
    """Return the running exchange and its address, "" if it serves no blocks; None if hand-over is impossible.

    `kv_class_of` gets the layout of bytes. Raises ConfigError for an unusable address.
    """
    if config.cache.kv_hand_over == HAND_OVER_OFF or not config.cache.enable_prefix_caching:
        return None
    memory = executor.block_bytes()
    problem = ""
    if memory is None:
        problem = "the KV cache is in worker processes or on a device"
    elif len(cache.groups) > 1 or not isinstance(cache.groups[0].spec, FullAttention):
        problem = "the model has layers with a sliding window"
    if memory is None or problem:
        if config.cache.kv_hand_over != HAND_OVER_AUTO:
            raise ConfigError(f"{flag_of('kv_hand_over')}: {problem}, and such a cache cannot be handed over")
        log.info("no KV hand-over: %s. Requests from other engines are computed again", problem)
        return None
    keys = load_shared_keys(config.link.link_keys) if config.link.link_keys else None
    exchange = Exchange(memory, kv_class_of(memory.layout), keys, deliver)
    try:
        if config.cache.kv_hand_over == HAND_OVER_AUTO:
            address = _listen_if_possible(exchange, own_address(config.link, incarnation))
        else:
            address = exchange.listen(config.cache.kv_hand_over)
    except BaseException:
        exchange.close()
        raise
    exchange.start()
    log.info("KV hand-over: other engines fetch blocks at %s", address or "no address of this engine")
    return exchange, address


def _listen_if_possible(exchange: Exchange, text: str) -> str:
    try:
        return exchange.listen(text) if text else ""
    except ConfigError as error:  # the user did not ask for this address
        log.warning("the engine serves no KV blocks: %s", error)
        return ""


def own_address(link: LinkConfig, incarnation: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of this pod, or one next to a link on this machine; "" if frontends are elsewhere."""
    if ip := environ.get(POD_IP):
        return LinkAddress("", host=ip, port=KV_HAND_OVER_PORT).endpoint()
    for text in link.link:
        address = parse_address(text)
        if address.is_ipc:
            path = str(PurePath(address.path).with_name(f"kv-{incarnation}"))
            if len(path.encode()) <= MAX_IPC_PATH:
                return f"ipc://{path}"
        # Without keys a loopback port would be open to all users of the machine.
        if address.is_loopback or (address.is_ipc and link.link_keys):
            return _LOOPBACK
    return ""
