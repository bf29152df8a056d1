import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.client.input.input_processor import InputProcessor
from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained
from runtime.client.input.processors import TEMPLATE, processor_of


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = trained.save(trained.byte_level(), tmp_path_factory.mktemp("model"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return directory


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture
def processor(directory: Path, tokenizer: Tokenizer) -> Iterator[InputProcessor]:
    processor = processor_of(tokenizer, ChatTemplate.load(directory))
    yield processor
    processor.close()
