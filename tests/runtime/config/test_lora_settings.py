"""The forms in which LoRA adapters are named."""

from pathlib import Path

import pytest

from kvasir.config.lora_settings import AdaptersConfig, LoraModule, lora_module, read_modules_file
from kvasir.config.options import ConfigError

FILE = Path("adapters.json")


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("sql=hf://org/sql@v2", LoraModule("sql", "hf://org/sql@v2")),
        ("sql=/adapters/a=b", LoraModule("sql", "/adapters/a=b")),
        ('{"name": "sql", "path": "org/sql"}', LoraModule("sql", "org/sql")),
        ('{"name": "sql", "path": "org/sql", "base_model_name": "m"}', LoraModule("sql", "org/sql", "m")),
    ],
)
def test_an_adapter_is_named_as_in_vllm(text: str, module: LoraModule) -> None:
    assert lora_module(text) == module
    assert AdaptersConfig((text,)).modules == (module,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sql", "does not name a LoRA adapter: give NAME=SOURCE"),
        ("=/adapters/sql", "does not name a LoRA adapter"),
        ('{"name": "sql"}', "lacks a name or a path"),
        ('{"name": "sql", "path": "a", "rank": 8}', "has no field 'rank'"),
        ('{"name"', "is not JSON"),
        ("a\nb=/adapters/sql", "printable characters"),
    ],
)
def test_an_unusable_name_is_rejected_with_the_forms(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lora_module(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "is not a list of LoRA adapters"),
        (b"\xff", "is not a list of LoRA adapters"),
        (b'[{"name": "sql"}]', "lacks a name or a path"),
        (b'[{"name": "a", "source": "x"}, {"name": "a", "source": "y"}]', "two LoRA adapters have the name a"),
    ],
)
def test_an_unusable_file_is_named(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_modules_file(content, FILE)


def test_adapters_are_named_at_one_place() -> None:
    with pytest.raises(ConfigError, match="give one of the two"):
        AdaptersConfig(("sql=a",), "adapters.json")
    with pytest.raises(ConfigError, match="two LoRA adapters have the name sql"):
        AdaptersConfig(("sql=a", "sql=b"))
