"""A proxy between an operator and the API server that records every request."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

_PASSED_ON: Final = ("Authorization", "Accept", "Content-Type", "User-Agent")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    status: int
    query: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.query} {self.status}"


@dataclass
class ApiProxy:
    kubeconfig: Path
    """The operator's kubeconfig."""
    requests: list[Request] = field(default_factory=list)
    """The requests whose responses have started. A watch is recorded when it starts."""

    def changes(self) -> list[Request]:
        return [each for each in self.requests if each.method != "GET" and "/leases" not in each.path]

    async def settled(self, seconds: float = 3.0, patience: float = 60.0) -> None:
        """Wait until no request except those for the Lease has occurred for this many seconds."""
        async with asyncio.timeout(patience):
            while True:
                before = self.asked()
                await asyncio.sleep(seconds)  # the test waits for the absence of requests
                if self.asked() == before:
                    return

    def asked(self) -> int:
        return sum("/leases" not in each.path for each in self.requests)


@contextlib.asynccontextmanager
async def api_proxy(kubeconfig: Path, folder: Path) -> AsyncIterator[ApiProxy]:
    """Serve on loopback in the block, with the permissions of this kubeconfig."""
    config = _read(kubeconfig)
    cluster = config["clusters"][0]["cluster"]
    server = cluster.pop("server")
    context = ssl.create_default_context(cafile=cluster.pop("certificate-authority"))
    proxy = ApiProxy(folder / "kubeconfig-of-the-proxy")

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    ) as http:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
            async with http.request(
                request.method, server + request.raw_path, headers=headers, data=await request.read() or None
            ) as answer:
                proxy.requests.append(Request(request.method, request.path, answer.status, request.query_string))
                response = web.StreamResponse(status=answer.status)
                response.content_type = answer.content_type
                with contextlib.suppress(ConnectionError, aiohttp.ClientConnectionError):  # the operator has ended
                    await response.prepare(request)
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                return response

        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cluster["server"] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        _write(proxy.kubeconfig, config)
        try:
            yield proxy
        finally:
            await runner.cleanup()


def _read(kubeconfig: Path) -> Any:
    return json.loads(kubeconfig.read_text())


def _write(kubeconfig: Path, config: Any) -> None:
    kubeconfig.write_text(json.dumps(config))
