"""The service in the metrics of its frontend: engines that take requests, and requests that moved."""

import asyncio
import re
import time
from typing import Final

import aiohttp

from kvasir.config.options import CommandFailed
from kvasir_contract.endpoints import METRICS_PATH

_USABLE: Final = re.compile(r'^kvasir:engine_usable\{.*\bengine="([^"]*)".*\} 1(?:\.0)?$', re.MULTILINE)
_MOVES: Final = re.compile(r"^kvasir:migrations_total(?:\{.*\})? (\S+)$", re.MULTILINE)
_LOOK_SECONDS: Final = 0.2
_MAX_SECONDS_UNTIL_NOTICED: Final = 5.0


class ServiceView:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url + METRICS_PATH

    async def moves(self) -> int:
        return int(sum(float(value) for value in _MOVES.findall(await self._metrics())))

    async def usable(self) -> set[str]:
        return set(_USABLE.findall(await self._metrics()))

    async def recovery(self, ranks: set[str], disturbed: "asyncio.Task[None]", limit: float) -> float | None:
        """Return the seconds until these engines take requests again after the disturbance; None after `limit`.

        0 for a loss that the frontend has not noticed soon after the disturbance: there was none.
        """
        since = time.monotonic()
        noticed, over = False, 0.0
        while (now := time.monotonic()) - since < limit:
            complete = ranks <= await self.usable()
            if disturbed.done():
                over = over or now
                if noticed and complete:
                    return now - since
                if not noticed and now - over > _MAX_SECONDS_UNTIL_NOTICED:
                    return 0.0
            noticed = noticed or not complete
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _metrics(self) -> str:
        """Return the metrics. Raises CommandFailed without an answer."""
        try:
            async with self._session.get(self._url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CommandFailed(f"{self._url} does not answer: {error}") from error
