"""AsyncLLM on the real link with the scripted engines that a test starts for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.client.async_llm import AsyncLLM, Delta
from kvasir.client.input.prompted import Prompted
from kvasir.config.frontend_settings import ServerConfig
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.tokenizer import Tokenizer
from kvasir.link.frontend_end.link_events import LinkEvent
from kvasir.link.protocol import FailedStep, Ready
from kvasir.request.params import SamplingFields
from runtime.client import trained
from runtime.client.observers import RecordingObserver
from runtime.client.scripted_engine import PATIENCE, ScriptedEngine

MODEL: ModelInfo = trained.model_info()
LIVE_LIMIT = 300
HOLDS_NONE = pytest.mark.parametrize("server", [ServerConfig(max_live_requests=LIVE_LIMIT, hold_timeout=0)])
"""A service that answers at once while no engine is ready."""


class WatchedLLM(AsyncLLM):
    """Sets `changed` after each event of the link, and `reentered` if it takes one while it handles another."""

    changed: asyncio.Event
    reentered = False
    _handling = False

    def _handle(self, event: LinkEvent) -> None:
        self.reentered = self.reentered or self._handling
        self._handling = True
        try:
            super()._handle(event)
        finally:
            self._handling = False
        self.changed.set()


class Service:
    """A frontend's client and the engines a test started for it."""

    def __init__(self, llm: WatchedLLM, observer: RecordingObserver, tokenizer: Tokenizer) -> None:
        self.llm = llm
        self.observer = observer
        self.tokenizer = tokenizer
        self.engines: list[ScriptedEngine] = []
        llm.changed = observer.changed

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what happens to engines or requests until this holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.observer.changed.clear()
                await self.observer.changed.wait()

    def connect(self, *, ready: Ready | None = None, rank: int = 0) -> ScriptedEngine:
        engine = ScriptedEngine(self.llm.link_address, MODEL, rank=rank)
        self.engines.append(engine)
        engine.start(ready)
        return engine

    async def engine(self, rank: int = 0, crashed: FailedStep | None = None) -> ScriptedEngine:
        """An engine that takes requests."""
        engine = ScriptedEngine(self.llm.link_address, MODEL, rank=rank, crashed=crashed)
        self.engines.append(engine)
        engine.start()
        await self.until(lambda: self.usable(engine))
        return engine

    def usable(self, engine: ScriptedEngine) -> bool:
        known = self.llm.engines.get(engine.identity.incarnation)
        return known is not None and known.usable

    def prompted(self, text: str = "The quick brown", max_tokens: int | None = None, **asked: object) -> Prompted:
        fields = SamplingFields(**asked)  # type: ignore[arg-type]
        return self.llm.input.prepare(self.tokenizer.encode(text, False), fields, max_tokens=max_tokens)

    def ask(self, request_id: str, **params: Any) -> asyncio.Task[list[Delta]]:
        """A consumer that reads to the end."""

        async def read() -> list[Delta]:
            return [delta async for delta in self.llm.generate(request_id, self.prompted(**params))]

        return asyncio.create_task(read())
