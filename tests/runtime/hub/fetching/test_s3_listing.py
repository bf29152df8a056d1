"""s3:// from a fake store, and from moto's server where KVASIR_MOTO_SERVER names its command.

moto needs an older python-dateutil than kubernetes does, so it is installed into another environment.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import obstore
import pytest
from obstore.store import S3Store

from kvasir.cli import serve
from kvasir.config.settings import ModelConfig
from kvasir.hub.fetching.filled_directory import fill
from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound
from kvasir.hub.located_model import fetch_weights, read_model
from kvasir.hub.source import fetch, list_files
from runtime.hub.fetching import fake_bucket
from runtime.hub.fetching.fake_bucket import FakeBucket
from runtime.hub.fetching.test_filled_directory import DEMO

SOURCE: Final = "s3://models/qwen/demo"
MODEL: Final = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
EXTRA: Final = {"README.md": b"# Model", "original/model.safetensors": b"4" * 1000}


def use(url: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeBucket]:
    with fake_bucket.running() as server:
        use(server.url, monkeypatch, tmp_path / "home")
        for name, content in {**MODEL, **EXTRA}.items():
            server.put(f"qwen/demo/{name}", content)
        yield server


def test_a_model_of_a_bucket_is_served_from_the_cache(bucket: FakeBucket, tmp_path: Path) -> None:
    config = ModelConfig(source=SOURCE)
    model = read_model(config)
    frontends = set(bucket.sent)
    assert "qwen/demo/model.safetensors" not in frontends
    assert str(tmp_path / "home" / "kvasir" / "s3") in str(model.path)
    assert fetch_weights(model, config, "auto", lambda *_: None).weights
    assert set(bucket.sent) - frontends == {"qwen/demo/model.safetensors"}
    before = bucket.sent.copy()
    assert fetch_weights(read_model(config), config, "auto", lambda *_: None).weights
    again = bucket.sent - before
    assert again.total() == min(map(len, MODEL.values())) * 2, "one file shows the kind of hashes"


def test_the_check_before_a_start_needs_no_weights(bucket: FakeBucket) -> None:
    assert serve.check_settings(serve.settings_of(serve.parser().parse_args([SOURCE, "--device", "cpu"]))) == "chat"
    assert "qwen/demo/model.safetensors" not in bucket.sent


def test_a_directory_is_filled_and_verified(bucket: FakeBucket, tmp_path: Path) -> None:
    listing = list_files(SOURCE)
    bucket.files["qwen/demo/model.safetensors"] = b"x" * len(MODEL["model.safetensors"])
    with pytest.raises(DownloadFailed, match=r"model.safetensors arrived with the hash \w+"):
        fill(tmp_path / "volume", listing, lambda *_: None)
    bucket.put("qwen/demo/model.safetensors", MODEL["model.safetensors"])
    fill(tmp_path / "volume", listing, lambda *_: None)
    found = {path.name: path.read_bytes() for path in (tmp_path / "volume").iterdir() if path.is_file()}
    assert found == MODEL


def test_tags_that_are_no_hashes_verify_nothing(
    bucket: FakeBucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.tags = {path: f'"{number:032x}"' for number, path in enumerate(bucket.files)}
    fill(tmp_path / "volume", list_files(SOURCE), lambda *_: None)
    assert "only their sizes are verified" in caplog.text
    assert (tmp_path / "volume" / "model.safetensors").read_bytes() == MODEL["model.safetensors"]


def test_a_new_file_of_equal_size_without_hash_is_fetched(bucket: FakeBucket, tmp_path: Path) -> None:
    path, old = "qwen/demo/model.safetensors", MODEL["model.safetensors"]
    bucket.tags[path] = '"upload-in-parts-1"'
    fill(tmp_path / "volume", list_files(SOURCE), lambda *_: None)
    bucket.put(path, old[:-1] + b"x")
    bucket.tags[path] = '"upload-in-parts-2"'
    fill(tmp_path / "volume", list_files(SOURCE), lambda *_: None)
    assert (tmp_path / "volume" / "model.safetensors").read_bytes() == old[:-1] + b"x"


def test_files_that_a_bucket_no_longer_has_are_deleted(bucket: FakeBucket) -> None:
    config = ModelConfig(source=SOURCE)
    first = fetch_weights(read_model(config), config, "auto", lambda *_: None).path
    for new in ("model-00001-of-00001.safetensors", "other.safetensors"):
        old = next(name for name in bucket.files if name.endswith("safetensors") and "original" not in name)
        bucket.put(f"qwen/demo/{new}", bucket.files.pop(old))
        model = read_model(config)
        assert fetch_weights(model, config, "auto", lambda *_: None).path == first
        assert [path.name for path in first.glob("*.safetensors")] == [new]
        read_model(config)
        assert (first / new).exists(), "a frontend must leave the weights of engines"


@pytest.mark.parametrize(
    ("source", "status", "error", "words"),
    [
        (SOURCE, 403, ModelNotFound, r"may not be read: the store answered 403 \(Refused\); set AWS_ACCESS_KEY_ID"),
        (SOURCE, 400, DownloadFailed, r"could not be downloaded: the store answered 400 \(Refused\)"),
        ("s3://other/qwen", 0, ModelNotFound, r"404 \(NoSuchBucket\); check the bucket"),
        ("s3://models/llama", 0, ModelNotFound, "s3://models/llama has no files"),
        ("s3://models/qwen", 0, ModelNotFound, "has no weights in a format that is read: it has demo/"),
        ("s3://models/../x", 0, HubError, "write s3://bucket/prefix"),
    ],
)
def test_what_a_bucket_lacks_is_named(
    bucket: FakeBucket, source: str, status: int, error: type[HubError], words: str
) -> None:
    bucket.status = status
    with pytest.raises(error, match=words):
        fetch(source, weights=False)


def test_a_store_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use("http://me:password@127.0.0.1:9", monkeypatch, tmp_path)
    monkeypatch.setattr("kvasir.hub.fetching.s3_listing.MAX_RETRIES", 0)
    with pytest.raises(DownloadFailed, match="check AWS_ENDPOINT_URL") as error:
        fetch(SOURCE, weights=False)
    assert "password" not in str(error.value)


def test_a_variable_that_the_store_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use("http://127.0.0.1:9", monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "maybe")
    with pytest.raises(DownloadFailed, match='failed to parse "maybe" as boolean'):
        fetch(SOURCE, weights=False)


def test_a_bucket_with_too_many_files_is_refused(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.hub.fetching.s3_listing.MAX_LISTED_FILES", 3)
    with pytest.raises(ModelNotFound, match="more than 3 files: give the prefix of one model"):
        fetch(SOURCE, weights=False)


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Store]:
    command = os.environ.get("KVASIR_MOTO_SERVER")
    if not command:
        pytest.skip("KVASIR_MOTO_SERVER does not name moto's server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [command, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _create_bucket(url)
            use(url, monkeypatch, tmp_path / "home")
            yield S3Store("models", client_options={"allow_http": True})
        finally:
            server.terminate()


def _create_bucket(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.put(f"{url}/models").raise_for_status()
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_model_is_fetched_from_motos_server(moto: S3Store, tmp_path: Path) -> None:
    for name, content in {**MODEL, **EXTRA}.items():
        obstore.put(moto, f"qwen/demo/{name}", content, use_multipart=False)
    obstore.put(moto, "qwen/demo/model.safetensors", MODEL["model.safetensors"], chunk_size=5 * 2**20)
    config = ModelConfig(source=SOURCE)
    assert fetch_weights(read_model(config), config, "auto", lambda *_: None).weights
    listing = list_files(SOURCE)
    fill(tmp_path / "volume", listing, lambda *_: None)
    found = {path.name: path.read_bytes() for path in (tmp_path / "volume").iterdir() if path.is_file()}
    assert found == MODEL
    with pytest.raises(ModelNotFound, match="NoSuchBucket"):
        fetch("s3://other/qwen", weights=False)
