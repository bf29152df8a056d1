from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.config.frontend_settings import FrontendConfig, ServerConfig
from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import ModelConfig
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained
from runtime.client.observers import RecordingObserver
from runtime.client.service import LIVE_LIMIT, MODEL, Service, WatchedLLM


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(trained.save(trained.byte_level(), tmp_path_factory.mktemp("model")))


@pytest.fixture
def server() -> ServerConfig:
    """Settings of the service; a test parametrizes them with its own ones."""
    return ServerConfig(max_live_requests=LIVE_LIMIT)


@pytest.fixture
async def service(server: ServerConfig, tokenizer: Tokenizer, tmp_path: Path) -> AsyncIterator[Service]:
    observer = RecordingObserver()
    config = FrontendConfig(
        model=ModelConfig("demo://"),
        server=server,
        link=LinkConfig(link=(f"ipc://{tmp_path}/link",)),
    )
    llm = WatchedLLM(config, MODEL, tokenizer, ChatTemplates(None), observer=observer)
    await llm.start()
    service = Service(llm, observer, tokenizer)
    yield service
    await llm.close()
    assert not llm.reentered
    for engine in service.engines:
        engine.close()
