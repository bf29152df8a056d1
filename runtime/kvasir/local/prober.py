"""Asks a process how it is: the liveness probe and its phase. Used by keeper.py."""

import asyncio
from dataclasses import dataclass

import httpx

from kvasir.local.process import LocalPhase, Probe, ProcessSpec
from kvasir_contract.phases import Phase


@dataclass(frozen=True)
class Seen:
    """What a process says about itself."""

    phase: Phase | LocalPhase
    progress: tuple[int, int] | None = None
    """Bytes done and in all."""
    message: str = ""


class Prober:
    """Looks at one process over HTTP, a connection each time as the kubelet does."""

    def __init__(self, spec: ProcessSpec, http: httpx.AsyncClient) -> None:
        self._spec = spec
        self._http = http

    async def look(self) -> Seen | None:
        """Its phase now; None while it does not answer."""
        if self._spec.status_url is not None:
            return await self._engine_phase(self._spec.status_url)
        answer = await self._get(self._spec.readiness.url, self._spec.readiness.timeout)
        if isinstance(answer, str):
            return None
        return Seen(Phase.READY if answer.is_success else LocalPhase.LISTENING)

    async def unhealthy(self, liveness: Probe) -> str:
        """Returns why, once a probe has failed as often as it may."""
        if self._spec.startup is not None:
            failed = await self._failed(self._spec.startup, until_success=True)
            if failed:
                return f"its startup probe {failed}"
        return f"its liveness probe {await self._failed(liveness)}"

    async def _engine_phase(self, url: str) -> Seen | None:
        answer = await self._get(url, self._spec.readiness.timeout)
        if isinstance(answer, str) or not answer.is_success:
            return None
        status = answer.json()
        progress = status["progress"]
        return Seen(
            phase=Phase(status["phase"]),
            progress=(progress["done"], progress["total"]) if progress else None,
            message=status["message"],
        )

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
        """The answer, or why there is none."""
        try:
            return await self._http.get(url, timeout=seconds)
        except httpx.TransportError as error:
            return f"{type(error).__name__} {error}".strip()
