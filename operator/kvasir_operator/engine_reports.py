"""Asks engines how far they are: GET /status on their ops port, by the pods' addresses. Used by reconcile.py.

Best effort: an engine that does not answer at once is described by its pod's status instead.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from kvasir_operator.pods import EngineReport, Pod, container_runs
from kvasir_operator.resources.names import OPS_PORT

TIMEOUT: Final = 1.0
"""Seconds for one engine."""
PATIENCE: Final = 3.0
"""Seconds for all engines of a service: where none can be reached, there may be a thousand of them."""
AT_ONCE: Final = 32


class EngineReports:
    def __init__(self, port: int = OPS_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def of(self, pods: Sequence[Pod]) -> Mapping[str, EngineReport]:
        """By the pod's name; without those that do not answer."""
        reports: dict[str, EngineReport] = {}

        async def ask(pod: Pod) -> None:
            report = await self._ask(pod["status"]["podIP"])
            if report is not None:
                reports[pod["metadata"]["name"]] = report

        running = [pod for pod in pods if container_runs(pod) and pod["status"].get("podIP")]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(ask(pod) for pod in running))
        return reports

    async def _ask(self, address: str) -> EngineReport | None:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True))
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._slots, self._session.get(f"http://{host}:{self._port}/status") as response:
                answer: Any = await response.json()
            progress = answer["progress"]
            return EngineReport(
                phase=str(answer["phase"]),
                progress=(int(progress["done"]), int(progress["total"])) if progress else None,
                message=str(answer["message"]),
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
            return None
