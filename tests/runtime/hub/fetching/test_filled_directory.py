"""A directory is filled from a Hub on loopback that counts the bytes it sends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from huggingface_hub import constants

from kvasir.config.settings import ModelConfig
from kvasir.hub.fetching import filled_directory
from kvasir.hub.fetching.filled_directory import fill, is_filled
from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound
from kvasir.hub.located_model import fetch_weights, read_model
from kvasir.hub.source import list_files
from kvasir_contract.failure import find_failure
from kvasir_contract.reasons import Reason
from runtime.hub import fake_hub
from runtime.hub.fake_hub import COMMIT, FakeHub

DEMO: Final = Path(filled_directory.__file__).parents[1] / "demo"
SOURCE: Final = "hf://org/name"
SHARDS: Final = {"model-00001-of-00002.safetensors": b"1" * 600_000, "model-00002-of-00002.safetensors": b"2" * 9}
BUFFER_BYTES: Final = 64 * 1024
FILES: Final = {"config.json": b"{}", "README.md": b"# Model", "model.safetensors.index.json": b"{}", **SHARDS}
FETCHED: Final = {name: content for name, content in FILES.items() if name != "README.md"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    with fake_hub.running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        server.models["org/name"] = dict(FILES)
        yield server
        server.released.set()


def filled(directory: Path, source: str = SOURCE) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def progress(done: int, total: int) -> None:
        with lock:
            seen.append((done, total))

    fill(directory, list_files(source), progress)
    return seen


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_directory_has_the_files_that_engines_read(hub: FakeHub, tmp_path: Path) -> None:
    assert not is_filled(tmp_path, SOURCE)
    seen = filled(tmp_path)
    total = sum(map(len, FETCHED.values()))
    assert (seen[0], seen[-1]) == ((0, total), (total, total))
    assert content(tmp_path) == FETCHED
    assert is_filled(tmp_path, SOURCE)
    assert not is_filled(tmp_path, "hf://org/name@v1")
    assert hub.sent == {name: len(file) for name, file in FETCHED.items()}
    filled(tmp_path)
    assert hub.sent.total() == total


def test_a_broken_connection_goes_on_where_it_ended(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = iter(range(1_000_000))

    def breaks() -> None:
        if next(pieces) == 20:
            raise ConnectionResetError

    monkeypatch.setattr(hub, "before_piece", breaks)
    filled(tmp_path)
    assert content(tmp_path) == FETCHED
    assert hub.sent.total() < sum(map(len, FETCHED.values())) * 1.3


def test_the_hash_of_a_part_counts_as_progress(hub: FakeHub, tmp_path: Path) -> None:
    """Otherwise the liveness probe ends a Job whose volume is slow, and the next one begins again."""
    listing = list_files(SOURCE)
    (shard,) = [file for file in listing.files if file.size == 600_000]
    (tmp_path / ".kvasir").mkdir()
    (tmp_path / ".kvasir" / f"{shard.key}.part").write_bytes(b"1" * 600_000)
    assert len(filled(tmp_path)) == 1 + 1 + len(listing.files) - 1  # at first, of the part, and of each other file


def test_a_file_with_another_hash_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    listing = list_files(SOURCE)
    name = "model-00001-of-00002.safetensors"
    hub.models["org/name"][name] = b"x" * 600_000
    with pytest.raises(DownloadFailed, match=rf"{name} arrived with the hash \w+: it was deleted"):
        fill(tmp_path, listing, lambda *_: None)
    assert not is_filled(tmp_path, SOURCE)
    hub.models["org/name"][name] = SHARDS[name]
    fill(tmp_path, listing, lambda *_: None)
    assert content(tmp_path) == FETCHED


def test_a_new_revision_replaces_only_changed_files(hub: FakeHub, tmp_path: Path) -> None:
    filled(tmp_path)
    hub.models["org/name"]["config.json"] = b'{"a": 1}'
    before = hub.sent.copy()
    filled(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == b'{"a": 1}'
    assert hub.sent - before == {"config.json": 8}
    for shard in (b"x" * 9, SHARDS["model-00002-of-00002.safetensors"]):
        hub.models["org/name"]["model-00002-of-00002.safetensors"] = shard
        filled(tmp_path)
        assert (tmp_path / "model-00002-of-00002.safetensors").read_bytes() == shard


def test_a_directory_with_some_files_of_another_is_not_filled(hub: FakeHub, tmp_path: Path) -> None:
    filled(tmp_path)
    first, second = SHARDS
    hub.models["org/other"] = FILES | {first: b"3" * 600_000, second: b"4" * 9}
    listing = list_files("hf://org/other")
    hub.models["org/other"][first] = b"x" * 600_000  # is refused
    with pytest.raises(DownloadFailed):
        fill(tmp_path, listing, lambda *_: None)
    assert not is_filled(tmp_path, SOURCE)
    filled(tmp_path)
    assert content(tmp_path) == FETCHED
    assert is_filled(tmp_path, SOURCE)


def test_a_volume_without_room_is_named_before_bytes_come(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("kvasir.hub.fetching.filled_directory.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DownloadFailed, match=r"needs 0.0 GB more in .*: use a larger volume"):
        filled(tmp_path)
    assert not hub.sent


def test_a_directory_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match=rf"{tmp_path}/file.* cannot be written: Not a directory"):
        filled(tmp_path / "file")


def test_the_user_that_may_not_write_is_named(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    listing = list_files(SOURCE)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DownloadFailed, match=f"Permission denied; let the user {os.geteuid()} or the group"):
        fill(tmp_path, listing, lambda done, total: None)


@pytest.mark.parametrize(("status", "error"), [(401, ModelNotFound), (500, DownloadFailed)])
def test_an_error_of_the_hub_has_its_reason(
    hub: FakeHub, tmp_path: Path, status: int, error: type[HubError], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = list_files(SOURCE)
    hub.status = status
    with pytest.raises(error, match=SOURCE):
        fill(tmp_path, listing, lambda *_: None)


def test_only_files_of_a_quantisation_are_listed(hub: FakeHub) -> None:
    names = ("m-Q4_K_M.gguf", "Q8_0/m-Q8_0.gguf")
    hub.models["org/name-GGUF"] = {**{name: name.encode() for name in names}, "README.md": b""}
    listing = list_files("hf://org/name-GGUF:Q8_0@v1")
    assert [(file.name, file.size) for file in listing.files] == [("m-Q8_0.gguf", len(names[1]))]
    assert (listing.source, listing.revision) == ("hf://org/name-GGUF:Q8_0@v1", COMMIT)


def command(hub: FakeHub, directory: Path, **extra: str) -> tuple[list[str], dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "KVASIR_"))}
    arguments = [sys.executable, "-m", "kvasir.cli.main", "fetch", SOURCE, str(directory)]
    return arguments, kept | {"HF_ENDPOINT": hub.url, "HOME": str(directory.parent)} | extra


def written_to(directory: Path, size: int) -> None:
    """Wait until all bytes have arrived there, except those of a write buffer."""
    deadline = time.monotonic() + 30
    while sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < size - BUFFER_BYTES:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_job_goes_on_and_ranks_fetch_nothing(hub: FakeHub, tmp_path: Path, number: signal.Signals) -> None:
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    hub.models["org/name"] = files
    hub.stop_after = sum(map(len, files.values())) // 2
    message, volume = tmp_path / "message", tmp_path / "volume"
    arguments, environment = command(hub, volume, KVASIR_TERMINATION_MESSAGE=str(message))
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL) as first:
        assert hub.stalled.wait(60)
        written_to(volume, hub.sent.total())
        first.send_signal(number)
        assert first.wait(30) != 0
    assert not is_filled(volume, SOURCE)
    hub.stop_after = None
    hub.released.set()
    second = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert second.returncode == 0, second.stderr
    assert f"files of {SOURCE} at {COMMIT}" in message.read_text()
    wanted = {name: len(file) for name, file in files.items() if (volume / name).exists()}
    assert hub.sent.total() < sum(wanted.values()) + BUFFER_BYTES
    asked = len(hub.requested)
    config = ModelConfig(source=f"file://{volume}")
    for _ in range(3):
        assert fetch_weights(read_model(config), config, "auto", lambda *_: None).weights
    assert len(hub.requested) == asked
    third = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert (third.returncode, len(hub.requested)) == (0, asked)


def test_ctrl_c_ends_a_download_that_gets_no_bytes(hub: FakeHub, tmp_path: Path) -> None:
    hub.stop_after = 100_000
    arguments, environment = command(hub, tmp_path / "volume", HF_HUB_DOWNLOAD_TIMEOUT="600")
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL) as fetch:
        assert hub.stalled.wait(60)
        fetch.send_signal(signal.SIGINT)
        try:
            assert fetch.wait(30) == 130
        finally:
            fetch.kill()


def test_a_job_reports_its_failure(hub: FakeHub, tmp_path: Path) -> None:
    message = tmp_path / "message"
    arguments, environment = command(hub, tmp_path / "volume", KVASIR_TERMINATION_MESSAGE=str(message))
    hub.status = 503
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    failure = find_failure(message.read_text())
    assert ended.returncode == 1
    assert failure is not None
    assert failure.reason is Reason.DOWNLOAD_FAILED
    assert SOURCE in failure.message


def test_the_log_has_no_addresses_of_requests(hub: FakeHub, tmp_path: Path) -> None:
    """A hub redirects to addresses that are signed, which open a gated model to their reader."""
    hub.models["org/name"] = dict(FILES)
    arguments, environment = command(hub, tmp_path / "volume")
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert f"has the 4 files of {SOURCE}" in ended.stderr
    assert "http://" not in ended.stderr
