"""The sockets of the frontend's end of the link: ROUTER, monitor, key check."""

import asyncio
import logging
from collections.abc import Callable

import zmq

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.link.frontend_end.loop_socket import LoopSocket
from kvasir.process.seldom_log import SeldomLog
from kvasir.wire.address import LinkAddress, parse_address, require_keys
from kvasir.wire.bind import bind
from kvasir.wire.curve import KeyCheck
from kvasir.wire.keys import load_frontend_keys
from kvasir.wire.sockets import handshake_failure, limit, open_monitor, parse_event
from kvasir_contract.endpoints import ANY_HOST

log = logging.getLogger(__name__)


class LinkSockets:
    def __init__(
        self,
        config: LinkConfig,
        on_frames: Callable[[list[bytes]], None],
        on_broken: Callable[[], None],
        burst: int,
    ) -> None:
        """Bind a ROUTER, its monitor and the check of the engines' key. Raises ConfigError.

        `on_frames` gets each message, identity first. `on_broken`: some connection has ended. `burst`: messages to
        one engine at once.
        """
        keys = load_frontend_keys(config.link_keys) if config.link_keys else None
        address = _own_address(config.link, keys is not None)
        self._on_broken = on_broken
        self._seldom = SeldomLog(log)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._key_check: LoopSocket | None = None
        router = self._make_router(burst)
        try:
            # Before engines can connect: ZMQ rejects a connection that no key check admits.
            if keys is not None and not address.is_ipc:
                check = KeyCheck(router, keys, self._on_foreign_key)
                self._key_check = LoopSocket(check.socket, check.on_request)
            self.address = bind(router, address)
        except BaseException:
            if self._key_check is not None:
                self._key_check.close()
            router.close()
            self._context.term()
            raise
        self.encrypted = self._key_check is not None
        self._monitor = LoopSocket(open_monitor(self._context, router, "router"), self._on_event)
        self._raw_router = router
        self._router = LoopSocket(router, on_frames)

    def send(self, identity: str, frame: bytes) -> str | None:
        """Send without blocking; return the error, or None."""
        try:
            self._router.send([identity.encode(), frame])
        except zmq.Again:
            return "it does not read: its queue is full"
        except zmq.ZMQError:
            return "its connection broke"
        return None

    def read(self) -> bool:
        """Return False if messages wait for the loop's next turn."""
        self._router.read()
        return not self._router.has_more

    async def close(self, linger: float) -> None:
        self._raw_router.disable_monitor()
        self._monitor.close()
        self._router.close(linger)
        if self._key_check is not None:
            self._key_check.close()
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)  # waits for the linger

    def _make_router(self, burst: int) -> "zmq.Socket[bytes]":
        router = self._context.socket(zmq.ROUTER)
        limit(router, burst)
        router.router_mandatory = True  # otherwise ZMQ silently drops messages to an unknown peer or a full queue
        router.router_handover = True  # a reconnecting engine takes its identity over
        return router

    def _on_event(self, frames: list[bytes]) -> None:
        event, value = parse_event(frames)
        failure = handshake_failure(event, value)
        if failure is None:
            self._on_broken()
        elif event != zmq.Event.HANDSHAKE_FAILED_AUTH:  # the key check reports it
            self._seldom.warning(f"LinkRefused: an engine could not connect to {self.address}: {failure}")

    def _on_foreign_key(self, peer: str) -> None:
        self._seldom.warning(
            f"LinkRefused: an engine at {peer} could not connect to {self.address}: its key is not the one in "
            "client.public"
        )


def _own_address(link: tuple[str, ...], has_keys: bool) -> LinkAddress:
    """Raises ConfigError unless exactly one address can be bound."""
    if len(link) != 1:
        raise ConfigError(f"--link: a frontend binds one address, {len(link)} are given")
    address = parse_address(link[0])
    if not address.is_ipc and address.host != ANY_HOST and address.ip is None:
        raise ConfigError(
            f"--link {address.text}: a frontend binds an IP address of its own, or {ANY_HOST} for all of them"
        )
    require_keys(address, has_keys)
    return address
