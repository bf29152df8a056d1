"""hf:// from a local cache and from a Hub on loopback."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvasir.hub.adapters.adapter_info import read_adapter
from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.source import fetch
from runtime.hub import fake_hub
from runtime.hub.adapters.adapter_files import write_adapter
from runtime.hub.fake_hub import COMMIT, TOKEN, FakeHub

FILES = {
    "config.json": b"{}",
    "README.md": b"# Model",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": b"{}",
    "model-00001-of-00002.safetensors": b"1" * 300_000,
    "model-00002-of-00002.safetensors": b"2" * 200_000,
    "consolidated.safetensors": b"3" * 1000,
    "original/model.safetensors": b"4" * 1000,
    "pytorch_model.bin": b"5" * 1000,
}
FRONTEND_FILES = ["chat_template.jinja", "config.json", "model.safetensors.index.json", "tokenizer.json"]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1, which the library reads when it is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub.running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        server.models["org/name"] = FILES
        yield server


def cached(cache: Path, repository: str, revisions: dict[str, str]) -> Path:
    """A cache as the library leaves it, with the revisions' commits; the folder of this repository."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    for revision, commit in revisions.items():
        (folder / "refs" / revision).write_text(commit)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (folder / "blobs" / f"blob-{revision}").write_text("{}")
        (snapshot / "config.json").symlink_to(f"../../blobs/blob-{revision}")
    return folder


@pytest.mark.usefixtures("offline")
class TestOffline:
    def test_cached_model_is_found_by_branch_tag_and_commit(self, tmp_path: Path) -> None:
        other = "f" * 40
        folder = cached(tmp_path, "org/name", {"main": COMMIT, "v1": other})

        def fetched(source: str) -> Path:
            return fetch(source, weights=False, download_dir=str(tmp_path))

        assert fetched("hf://org/name") == folder / "snapshots" / COMMIT
        assert fetched("hf://org/name@main") == folder / "snapshots" / COMMIT
        assert fetched("hf://org/name@v1") == folder / "snapshots" / other
        assert fetched(f"hf://org/name@{other}") == folder / "snapshots" / other

    @pytest.mark.parametrize("source", ["hf://org/other", "hf://org/name@v2"])
    def test_an_uncached_model_names_the_cache_and_the_variable(self, tmp_path: Path, source: str) -> None:
        cached(tmp_path, "org/name", {"main": COMMIT})
        with pytest.raises(ModelNotFound) as missing:
            fetch(source, weights=False, download_dir=str(tmp_path))
        for part in (source, str(tmp_path), "HF_HUB_OFFLINE", "revision"):
            assert part in str(missing.value)


class TestDownload:
    def test_frontend_gets_configuration_and_tokenizer_only(self, hub: FakeHub, tmp_path: Path) -> None:
        path = fetch("hf://org/name", weights=False, download_dir=str(tmp_path))
        assert sorted(file.name for file in path.iterdir()) == FRONTEND_FILES
        assert path.name == COMMIT
        assert not [name for name in hub.requested if name.endswith((".safetensors", ".bin", ".md"))]

    def test_weights_join_the_config_and_bytes_are_counted(
        self, hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        seen: list[tuple[int, int]] = []
        before = fetch("hf://org/name@v1", weights=False, download_dir=str(tmp_path))
        path = fetch(
            "hf://org/name@v1",
            weights=True,
            download_dir=str(tmp_path),
            progress=lambda done, total: seen.append((done, total)),
        )
        assert path == before
        shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        assert sorted(file.name for file in path.rglob("*")) == sorted(FRONTEND_FILES + shards)
        assert capfd.readouterr() == ("", "")
        assert seen[-1] == (500_000, 500_000)
        assert all(done <= total for done, total in seen)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def test_ranks_with_one_cache_fetch_each_file_once(self, hub: FakeHub, tmp_path: Path) -> None:
        def rank(_: int) -> Path:
            return fetch("hf://org/name", weights=True, download_dir=str(tmp_path))

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(rank, range(4)))) == 1
        read = {name: len(FILES[name]) for name in hub.sent}
        assert sum(read.values()) > 500_000
        assert hub.sent == read

    def test_an_error_of_the_progress_ends_the_download(self, hub: FakeHub, tmp_path: Path) -> None:
        class Stopped(Exception):
            pass

        def stop(done: int, total: int) -> None:
            raise Stopped

        with pytest.raises(Stopped):
            fetch("hf://org/name", weights=True, download_dir=str(tmp_path), progress=stop)

    def test_token_of_the_environment_opens_a_gated_model(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.gated.add("org/name")
        with pytest.raises(ModelNotFound, match=r"gated and may not be read without a token.*ask for access"):
            fetch("hf://org/name", weights=False, download_dir=str(tmp_path))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert fetch("hf://org/name", weights=False, download_dir=str(tmp_path)).name == COMMIT

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("hf://org/other", r"hf://org/other was not found without a token: check the name"),
            ("hf://org/name@v2", r"hf://org/name@v2: the model has no such revision"),
        ],
    )
    def test_what_the_hub_has_not_is_named(self, hub: FakeHub, tmp_path: Path, source: str, said: str) -> None:
        with pytest.raises(ModelNotFound, match=said):
            fetch(source, weights=False, download_dir=str(tmp_path))

    @pytest.mark.parametrize(
        ("status", "said"),
        [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (429, "try again"), (500, "try again")],
    )
    def test_refusals_of_the_hub_say_what_to_do(self, hub: FakeHub, tmp_path: Path, status: int, said: str) -> None:
        hub.status = status
        with pytest.raises(HubError, match=said) as refused:
            fetch("hf://org/name", weights=False, download_dir=str(tmp_path))
        assert "hf://org/name" in str(refused.value)
        assert "\n" not in str(refused.value)

    def test_unreachable_hub_is_told_with_its_address(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(HubError, match=r"http://127.0.0.1:9 could not be reached .* check the network"):
            fetch("hf://org/name", weights=False, download_dir=str(tmp_path))

    def test_directory_that_cannot_be_written_is_named(self, hub: FakeHub, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(HubError, match=rf"hf://org/name could not be written to {tmp_path}/file.*: \w+"):
            fetch("hf://org/name", weights=False, download_dir=str(tmp_path / "file"))

    def test_cached_model_is_served_while_the_hub_is_away(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = fetch("hf://org/name", weights=False, download_dir=str(tmp_path))
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        assert fetch("hf://org/name", weights=False, download_dir=str(tmp_path)) == path
        with pytest.raises(HubError, match="not completely"):
            fetch("hf://org/name", weights=True, download_dir=str(tmp_path))


def test_an_adapter_is_fetched_without_other_files(hub: FakeHub, tmp_path: Path) -> None:
    here = write_adapter(tmp_path / "own")
    hub.models["org/sql"] = {file.name: file.read_bytes() for file in here.iterdir()} | {"optimizer.pt": b"1"}
    info = read_adapter("org/sql@v1", download_dir=str(tmp_path / "cache"))
    assert (info.source, info.path.name) == ("hf://org/sql@v1", COMMIT)
    assert info.named("sql").source == f"hf://org/sql@{COMMIT}"
    assert read_adapter(info.named("sql").source, download_dir=str(tmp_path / "other")).digest == info.digest
    assert sorted(file.name for file in info.path.iterdir()) == sorted(file.name for file in here.iterdir())


def test_an_adapters_weights_are_not_downloaded_for_its_name(hub: FakeHub, tmp_path: Path) -> None:
    here = write_adapter(tmp_path / "own", {"model.layers.0.mlp.up_proj": (4096, 32)}, rank=64)
    files = {file.name: file.read_bytes() for file in here.iterdir()}
    hub.models["org/sql"] = files
    info = read_adapter("org/sql", weights=False, download_dir=str(tmp_path / "cache"))
    assert hub.sent_parts < len(files["adapter_model.safetensors"]) / 2
    assert [file.name for file in info.path.iterdir()] == ["adapter_config.json"]
    whole = read_adapter(info.named("sql").source, download_dir=str(tmp_path / "engine"))
    assert (whole.digest, whole.modules) == (info.digest, info.modules)
    del files["adapter_model.safetensors"]
    with pytest.raises(HubError, match=r"has no adapter_model\.safetensors"):
        read_adapter("org/sql", weights=False, download_dir=str(tmp_path / "other"))
