"""A frontend on a real socket within the test's event loop, and scripted engines on its link."""

import asyncio
import functools
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import anthropic
import httpx
import openai

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.frontend_settings import FrontendConfig, ServerConfig
from kvasir.config.lora_settings import AdaptersConfig
from kvasir.config.options import names_of
from kvasir.config.process_settings import LinkConfig, ProcessConfig
from kvasir.config.settings import ModelConfig
from kvasir.config.tls_settings import TlsConfig
from kvasir.frontend.http.connections.acceptor import listen
from kvasir.frontend.server import Server, build_service
from kvasir.frontend.service import Service
from kvasir.frontend.status import FrontendStatus
from kvasir.hub.located_model import read_model
from kvasir.hub.model_info import ModelInfo, load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from kvasir.link.frontend_end.link_events import LinkEvent
from kvasir.process.listening import url_of
from runtime.frontend.scripted import TIMEOUT, Script, ScriptedEngine

MODEL = "demo"
POST_JSON = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
"""The beginning of a request's head, for tests that write to the socket themselves."""
ANSWER = "A pod is a group of containers."


@functools.cache
def demo_model() -> tuple[ModelInfo, Tokenizer]:
    path = fetch("demo://", weights=False)
    return load_model_info(path), load_tokenizer(path)


def script_for(text: str = ANSWER) -> Script:
    model, tokenizer = demo_model()
    return Script(answer=tokenizer.encode(text, add_special_tokens=False), eos=model.eos_token_ids[0])


def frontend_config(
    link: LinkConfig,
    source: str = "demo://",
    chat: ChatConfig | None = None,
    tls: TlsConfig | None = None,
    model: ModelConfig | None = None,
    **server: object,
) -> FrontendConfig:
    adapters = {name: server.pop(name) for name in names_of(AdaptersConfig) if name in server}
    return FrontendConfig(
        model=model or ModelConfig(source=source, served_model_name=(MODEL, "demo-alias")),
        server=ServerConfig(port=0, **server),  # type: ignore[arg-type]
        tls=tls or TlsConfig(),
        chat=chat or ChatConfig(),
        adapters=AdaptersConfig(**adapters),  # type: ignore[arg-type]
        link=link,
        process=ProcessConfig(drain_timeout=30.0),
    )


@asynccontextmanager
async def short_folder() -> AsyncIterator[Path]:
    """For sockets: their paths must stay under 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="kvs-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@dataclass
class Frontend:
    url: str
    service: Service
    server: Server
    config: FrontendConfig
    status: FrontendStatus
    engines: list[ScriptedEngine] = field(default_factory=list)
    _engines_changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[0]

    async def add_engine(
        self, script: Script | None = None, *, ready: bool = True, features: tuple[str, ...] = ()
    ) -> ScriptedEngine:
        """Connect an engine and wait until the frontend has it (as usable, if it is to be ready)."""
        model = read_model(self.config.model)
        engine = ScriptedEngine(self.config.link, model, script or script_for(), len(self.engines), features)
        self.engines.append(engine)
        engine.start(ready=ready)
        await self.until(
            lambda: (
                (known := self.service.llm.engines.get(engine.incarnation)) is not None
                and (known.usable or not ready)
            )
        )
        return engine

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something about the engines to become true."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                self._engines_changed.clear()
                await self._engines_changed.wait()

    def __post_init__(self) -> None:
        llm = self.service.llm
        handle = llm._handle

        def handle_and_notify(event: LinkEvent) -> None:
            handle(event)
            self._engines_changed.set()

        llm._handle = handle_and_notify  # type: ignore[method-assign]

    async def idle(self) -> None:
        """Nothing is left of any request, here and in the engines."""
        await self.service.llm.drain(TIMEOUT)
        if tasks := self.server.server_state.tasks:
            await asyncio.wait(tasks, timeout=TIMEOUT)
        assert self.service.llm.live_requests == 0
        assert len(self.service.live) == 0

    def http(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=TIMEOUT)

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)

    def anthropic(self, key: str = "none") -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key=key, max_retries=0, timeout=TIMEOUT)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll another process until the check holds: it has no event to wait for."""
    async with asyncio.timeout(TIMEOUT):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_frontend(
    *, engine: bool = True, reads_adapters: bool = True, **settings: object
) -> AsyncIterator[Frontend]:
    """A frontend with one ready engine, or with none; `settings` as `frontend_config` takes them."""
    async with short_folder() as folder:
        config = frontend_config(LinkConfig(link=(f"ipc://{folder}/link",)), **settings)  # type: ignore[arg-type]
        with closing(listen(config.server)) as listener:
            service = build_service(config)
            await service.llm.start()
            status = FrontendStatus()
            status.serve(service)
            http = Server(service, config, status)
            frontend = Frontend(
                url_of(listener, "https" if config.tls.ssl_certfile else "http"), service, http, config, status
            )
            task = asyncio.create_task(http.serve([listener]))
            try:
                if engine:
                    await frontend.add_engine()
                if service.listed_adapters is not None and reads_adapters:
                    await service.listed_adapters.read_once.wait()
                yield frontend
            finally:
                http.stop("the test is over")
                http.stop("the test is over")
                await task
                await service.llm.close()
                for each in frontend.engines:
                    await asyncio.to_thread(each.close)
