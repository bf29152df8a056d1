"""LoRA adapters of an offline call: each is read once, and checked before anything is computed."""

from importlib import import_module
from pathlib import Path

import pytest

from kvasir.config.lora_settings import LoRAConfig
from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.offline import LoRARequest
from kvasir.offline.lora_request import OfflineAdapters
from runtime.hub.adapters.adapter_files import write_adapter

ENABLED = LoRAConfig(enable_lora=True)


def test_a_list_has_an_adapter_for_each_prompt(tmp_path: Path) -> None:
    adapters = OfflineAdapters(ENABLED, None)
    sql = LoRARequest("sql", 1, str(write_adapter(tmp_path / "sql")))
    first, second = adapters.for_each([sql, None], 2)
    assert first is not None
    assert (first.request, first.adapter) == (sql, read_adapter(sql.path).named("sql"))
    assert second is None
    assert adapters.for_each(sql, 2) == [first, first]
    assert adapters.for_each(None, 2) == adapters.for_each([], 2) == [None, None]
    with pytest.raises(ValueError, match="2 lora_requests for 3 prompts"):
        adapters.for_each([sql, None], 3)


def test_files_are_read_again_only_when_asked(tmp_path: Path) -> None:
    adapters = OfflineAdapters(ENABLED, None)
    path = str(write_adapter(tmp_path))
    first = adapters.of(LoRARequest("sql", 1, path))
    write_adapter(tmp_path, seed=1)
    assert adapters.of(LoRARequest("sql", 1, path)) == first
    again = adapters.of(LoRARequest("other", 2, path, load_inplace=True))
    assert first is not None
    assert again is not None
    assert again.adapter == read_adapter(path).named("other")
    assert again.adapter.digest != first.adapter.digest


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LoRAConfig(), "create it with enable_lora=True"),
        (LoRAConfig(enable_lora=True, max_lora_rank=2), "rank 4, and max_lora_rank is 2"),
    ],
)
def test_an_unusable_adapter_is_a_value_error(config: LoRAConfig, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        OfflineAdapters(config, None).of(LoRARequest("sql", 1, str(write_adapter(tmp_path))))


def test_the_class_is_at_vllms_path() -> None:
    assert import_module("kvasir.lora.request").LoRARequest is LoRARequest
    with pytest.raises(ValueError, match="lora_path is ''"):
        LoRARequest("sql", 1, "")
