"""Requests the status of pods with GET /status on their ops port.

This is best effort: a pod that does not respond in time is described by its Kubernetes status instead. The
responder may be any image of a tenant, so the size, duration and every field of a response are limited.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp

from kvasir_contract.endpoints import OPS_PORT, STATUS_PATH
from kvasir_contract.status_report import MAX_REPORT_BYTES, ReportError, StatusReport
from kvasir_operator.observe.observed import Pod

POD_TIMEOUT_SECONDS: Final = 1.0
SERVICE_TIMEOUT_SECONDS: Final = 3.0
"""Limit for all pods of a service, which may have a thousand unreachable pods."""
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
        """Return the reports by UID of the pod, without pods that do not respond."""
        reports: dict[str, StatusReport] = {}
        slots = asyncio.Semaphore(MAX_CONCURRENT)  # per service: unresponsive pods of one do not block another

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

    async def _ask(self, address: str) -> StatusReport | None:
        host = f"[{address}]" if ":" in address else address
        try:
            url = f"http://{host}:{self._port}{STATUS_PATH}"
            async with self._connect().get(url, allow_redirects=False) as response:
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
                timeout=aiohttp.ClientTimeout(total=POD_TIMEOUT_SECONDS),
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                read_bufsize=MAX_REPORT_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session
