"""The sockets of the frontend's end of the link: ROUTER, monitor, key check."""

import asyncio
from collections.abc import Callable

import zmq

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import LinkConfig
from kvasir.link.frontend_end.loop_socket import LoopSocket
from kvasir.wire.address import LinkAddress, parse_address, require_keys
from kvasir.wire.keys import load_frontend_keys
from kvasir.wire.server_socket import PROBE_DELAYS, ServerSocket, send_failure
from kvasir_contract.endpoints import ANY_HOST


class LinkSockets:
    def __init__(
        self,
        config: LinkConfig,
        on_frames: Callable[[list[bytes]], None],
        on_broken: Callable[[], None],
        burst: int,
    ) -> None:
        """Bind the address. Raises ConfigError.

        `on_frames` gets each message, identity first. `on_broken`: some connection has ended. `burst`: messages to
        one engine at once.
        """
        keys = load_frontend_keys(config.link_keys) if config.link_keys else None
        address = _own_address(config.link, keys is not None)
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._next_probe = 0.0
        self._probes: list[asyncio.TimerHandle] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            server = ServerSocket(self._context, address, keys, "client.public", self._on_end, burst=burst)
        except BaseException:
            self._context.term()
            raise
        self.address, self.encrypted = server.address, server.encrypted
        self._server = server
        self._router = LoopSocket(server.router, on_frames)
        self._others = [LoopSocket(*reader) for reader in server.readers]

    def send(self, identity: str, frame: bytes) -> str | None:
        """Send without blocking; return the error, or None."""
        try:
            self._router.send([identity.encode(), frame])
        except zmq.ZMQError as error:
            return send_failure(error)
        return None

    def read(self) -> bool:
        """Return False if messages wait for the loop's next turn."""
        self._router.read()
        return not self._router.has_more

    async def close(self, linger: float) -> None:
        self._cancel_probes()
        self._server.router.disable_monitor()
        self._router.close(linger)
        for socket in self._others:
            socket.close()
        await self._loop.run_in_executor(None, self._context.term)  # waits for the linger

    def _on_end(self) -> None:
        # Of many reports at once, the first probes now; the others share later probes.
        now = self._loop.time()
        if now >= self._next_probe:
            self._next_probe = now + PROBE_DELAYS[0]
            self._on_broken()
        self._cancel_probes()
        self._probes = [self._loop.call_later(delay, self._on_broken) for delay in PROBE_DELAYS]

    def _cancel_probes(self) -> None:
        for timer in self._probes:
            timer.cancel()


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
