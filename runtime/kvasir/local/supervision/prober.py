"""Read the health and the phase of a process over HTTP."""

import asyncio

import httpx

from kvasir.local.supervision.process_spec import Probe, ProcessSpec
from kvasir_contract.status_report import ReportError, StatusReport


class Prober:
    # A connection each time, as the kubelet does.
    def __init__(self, spec: ProcessSpec, http: httpx.AsyncClient) -> None:
        self._spec = spec
        self._http = http

    async def look(self) -> StatusReport | None:
        answer = await self._get(self._spec.status_url, self._spec.readiness.timeout)
        if isinstance(answer, str) or not answer.is_success:
            return None
        try:
            return StatusReport.from_json(answer.content)
        except ReportError:
            return None

    async def unhealthy(self, liveness: Probe) -> str:
        """Return the reason, once a probe has failed as often as it may."""
        if self._spec.startup is not None:
            failed = await self._failed(self._spec.startup, until_success=True)
            if failed:
                return f"its startup probe {failed}"
        return f"its liveness probe {await self._failed(liveness)}"

    async def _failed(self, probe: Probe, until_success: bool = False) -> str:
        failures, trouble = 0, ""
        while failures < probe.failures:
            await asyncio.sleep(probe.period)
            trouble = await self._trouble(probe)
            failures = failures + 1 if trouble else 0
            if until_success and not trouble:
                return ""
        return f"failed {failures} times, last with {trouble}"

    async def _trouble(self, probe: Probe) -> str:
        answer = await self._get(probe.url, probe.timeout)
        if isinstance(answer, str):
            return answer
        return "" if answer.is_success else f"{answer.status_code} {answer.text.strip()[:200]}"

    async def _get(self, url: str, seconds: float) -> httpx.Response | str:
        """Return the answer, or the reason why there is none."""
        try:
            return await self._http.get(url, timeout=seconds)
        except httpx.TransportError as error:
            return f"{type(error).__name__} {error}".strip()
