from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.weights import weight_files
from runtime.gguf_files import write_gguf
from runtime.hub import fake_hub
from runtime.hub.fake_hub import FakeHub
from runtime.models.tiny import llama

SOURCE = "hf://org/x-GGUF:Q4_K_M"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    write_gguf(folder / "x.gguf", llama(hidden_size=512, num_hidden_layers=2), parts=12)
    parts = sorted(folder.iterdir())
    assert len(parts) == 2
    names = [f"Q4_K_M/x-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]
    return {name: part.read_bytes() for name, part in zip(names, parts, strict=True)}


@pytest.fixture
def hub(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub.running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        server.models["org/x-GGUF"] = files | {"x-Q8_0.gguf": b"GGUF", "mmproj-x.gguf": b"GGUF"}
        yield server


def test_frontend_reads_the_header_of_a_hubs_gguf_file(
    hub: FakeHub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvasir.hub.gguf.remote_file._PART_BYTES", 4096)
    before = fetch(SOURCE, weights=False, download_dir=str(tmp_path))
    assert 0 < hub.sent_parts < 100_000 < len(next(iter(files.values())))
    frontend = load_model_info(before)
    path = fetch(SOURCE, weights=True, download_dir=str(tmp_path))
    assert path == before
    assert load_model_info(path).fingerprint == frontend.fingerprint
    assert [file.read_bytes() for file in weight_files(path)] == list(files.values())
    assert not [name for name in hub.requested if "Q8_0" in name or "mmproj" in name]


def test_a_file_that_comes_whole_is_not_read_for_its_header(hub: FakeHub) -> None:
    hub.sends_parts, hub.stop_after = False, 1
    try:
        with pytest.raises(DownloadFailed, match="the server sends no parts of files"):
            fetch(SOURCE, weights=False)
    finally:
        hub.released.set()


@pytest.mark.parametrize("weights", [False, True])
def test_gguf_of_the_hub_starts_again_without_it(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: bool
) -> None:
    path = fetch(SOURCE, weights=weights, download_dir=str(tmp_path))
    for variable, value in (("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(constants, variable, value)
        assert fetch(SOURCE, weights=False, download_dir=str(tmp_path)) == path
        if weights:
            assert fetch(SOURCE, weights=True, download_dir=str(tmp_path)) == path
        else:
            with pytest.raises(HubError, match=r"hf://org/x-GGUF is not \(or not completely\) in"):
                fetch(SOURCE, weights=True, download_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf://org/x-GGUF", "hf://org/x-GGUF has 2 models in GGUF: choose one of Q4_K_M, Q8_0"),
        ("hf://org/x-GGUF:Q2_K", "hf://org/x-GGUF has no GGUF file Q2_K: choose one of Q4_K_M, Q8_0"),
        ("hf://org/other-GGUF:Q2_K", "hf://org/other-GGUF was not found"),
        ("hf://org/x-GGUF:Q2_K@v9", "hf://org/x-GGUF@v9: the model has no such revision"),
    ],
)
def test_gguf_repository_lists_its_quantisations(hub: FakeHub, tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(ModelNotFound) as refused:
        fetch(source, weights=False, download_dir=str(tmp_path))
    assert said in str(refused.value)
