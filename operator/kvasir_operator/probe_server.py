"""The HTTP server of the probes and metrics. A standby replica is live and ready."""

import logging
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvasir_contract.endpoints import ANY_HOST

log = logging.getLogger(__name__)


class ProbeServer:
    def __init__(
        self, registry: CollectorRegistry, *, trouble: Callable[[], str], unready: Callable[[], str]
    ) -> None:
        """`trouble` returns why to restart the process, `unready` why it cannot work yet; "" for no problem."""
        self._registry = registry
        self._trouble = trouble
        self._unready = unready
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)

    async def start(self, host: str, port: int) -> int:
        """Start to listen and return the port. Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, None if host == ANY_HOST else host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        log.info("serving probes and metrics on http://%s:%d", host, bound)
        return bound

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._trouble())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._unready())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _verdict(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")
