import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from kvasir.hub.gguf.gguf_metadata import shortest
from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from runtime.gguf_files import finish, write_gguf
from runtime.models.tiny import llama


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention__scale": 0.5}, r"llama\.attention\.scale is 0\.5, it must be 0 for this architecture"),
        ({"expert_count": 8}, r"llama\.expert_used_count is missing, it must be a whole number"),
        ({"rope__scaling__type": "ntk", "rope__scaling__factor": 2.0}, r"llama\.rope\.scaling\.type is ntk"),
        ({"rope__dimension_count": 8}, r"llama\.rope\.dimension_count is 8, it must be 16, the size of a head"),
        ({"block_count": 0}, r"llama\.block_count is 0, it must be a whole number, 1 or more"),
    ],
)
def test_gguf_settings_that_change_answers_are_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", llama(), **keys)
    with pytest.raises(HubError, match=rf"^{file}: {said}") as refused:
        fetch(f"file://{file}", weights=True)
    assert "\n" not in str(refused.value)


def test_gguf_architecture_that_is_not_read_lists_the_others(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    finish(writer)
    with pytest.raises(
        HubError, match=r"m\.gguf has the architecture mamba, .*; read are gemma, .*, smollm3: give"
    ):
        fetch(f"file://{tmp_path}/m.gguf", weights=True)


def test_gguf_file_gives_sampling_defaults_and_precision(tmp_path: Path) -> None:
    for kind, dtype in (("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16")):
        number = gguf.GGMLQuantizationType[kind]
        general = {"sampling.temp": 0.6, "sampling.top_k": 20}
        file = write_gguf(tmp_path / f"{kind}.gguf", llama(), kind=number, general=general)
        info = load_model_info(fetch(f"file://{file}", weights=True))
        assert (info.dtype, info.generation_defaults) == (dtype, {"temperature": 0.6, "top_k": 20})


@pytest.mark.parametrize("value", [1e-5, 1e-6, 0.1, 10000.0, 1e6, 0.7071067811865476])
def test_shortest_decimal_is_the_one_that_was_meant(value: float) -> None:
    stored = struct.unpack("<f", struct.pack("<f", value))[0]
    assert shortest(stored) == pytest.approx(value, rel=1e-7)
    assert len(repr(shortest(stored))) <= 11
