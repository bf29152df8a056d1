"""Requests the status of pods on their ops port, and waits there for the demand of frontends.

The pod may run any image of a tenant, so size, duration and every field are limited.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp

from kvasir_contract.endpoints import (
    CLOSE_GATE_PATH,
    DEMAND_PATH,
    MAX_DEMAND_WAIT_SECONDS,
    OPEN_GATE_PATH,
    OPS_PORT,
    STATUS_PATH,
)
from kvasir_contract.status_report import MAX_REPORT_BYTES, ReportError, StatusReport
from kvasir_operator.observe.observed import Pod

POD_TIMEOUT_SECONDS: Final = 1.0
SERVICE_TIMEOUT_SECONDS: Final = 3.0  # for all pods of a service
GATE_TIMEOUT_SECONDS: Final = 3.0  # the event loop may be busy
MAX_CONCURRENT: Final = 32
MAX_HEADER_BYTES: Final = 4096


class StatusReports:
    def __init__(self, port: int = OPS_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, StatusReport]:
        """Return the reports of the pods that respond, by UID."""
        reports: dict[str, StatusReport] = {}
        slots = asyncio.Semaphore(MAX_CONCURRENT)  # unresponsive pods of one service do not block another

        async def ask(pod: Pod) -> None:
            async with slots:
                report = await self._ask(pod.ip)
            if report is not None:
                reports[pod.uid] = report

        running = [pod for pod in pods if pod.container.state == "running" and pod.ip]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVICE_TIMEOUT_SECONDS):
                await asyncio.gather(*(ask(pod) for pod in running))
        return reports

    async def wait_for_demand(self, pod: Pod) -> StatusReport | None:
        """Return a frontend's report when it has a request, or after MAX_DEMAND_WAIT_SECONDS."""
        path = f"{DEMAND_PATH}?timeout={MAX_DEMAND_WAIT_SECONDS:g}"
        return await self._ask(pod.ip, path, MAX_DEMAND_WAIT_SECONDS + POD_TIMEOUT_SECONDS)

    async def set_gates(self, pods: Mapping[Pod, bool]) -> None:
        """Order frontends to close (True) or open their gates. The next reports show the result."""
        slots = asyncio.Semaphore(MAX_CONCURRENT)

        async def order(pod: Pod, closed: bool) -> None:
            path = CLOSE_GATE_PATH if closed else OPEN_GATE_PATH
            async with slots:
                await self._ask(pod.ip, path, GATE_TIMEOUT_SECONDS, method="POST")

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVICE_TIMEOUT_SECONDS):
                await asyncio.gather(*(order(pod, closed) for pod, closed in pods.items() if pod.ip))

    async def _ask(
        self, address: str, path: str = STATUS_PATH, seconds: float = POD_TIMEOUT_SECONDS, method: str = "GET"
    ) -> StatusReport | None:
        host = f"[{address}]" if ":" in address else address
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            url = f"http://{host}:{self._port}{path}"
            async with self._connect().request(method, url, allow_redirects=False, timeout=limit) as response:
                if response.status != HTTPStatus.OK:
                    return None
                body = await response.content.read(MAX_REPORT_BYTES + 1)
                while len(body) <= MAX_REPORT_BYTES and (more := await response.content.read(MAX_REPORT_BYTES)):
                    body += more
            return StatusReport.from_json(body)
        except (aiohttp.ClientError, TimeoutError, OSError, ReportError):
            return None

    def _connect(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                read_bufsize=MAX_REPORT_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session
