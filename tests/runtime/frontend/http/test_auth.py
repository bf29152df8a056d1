import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.http import auth
from kvasir.frontend.http.auth import ApiKeys
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from runtime.frontend.harness import running_frontend

OPEN = ("/health/live", "/health/ready", "/health", "/metrics", "/version")


async def test_api_needs_a_key_and_accepts_each_given_one() -> None:
    async with running_frontend(api_key=("first", "second")) as frontend, frontend.http() as client:
        for path in OPEN:
            assert (await client.get(path)).status_code == 200, path
        for key in ("first", "second"):
            accepted = await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert accepted.status_code == 200
        missing = await client.get("/v1/models")
        wrong = await client.post("/v1/completions", headers={"authorization": "Bearer third"}, json={})
        basic = await client.get("/v1/models", headers={"authorization": "Basic first"})
    assert _error(missing) == (401, "missing_api_key")
    assert _error(wrong) == (401, "invalid_api_key")
    assert "Incorrect API key provided" in wrong.json()["error"]["message"]  # litellm looks for these words
    assert _error(basic) == (401, "missing_api_key")
    assert missing.headers["www-authenticate"] == "Bearer"
    assert "x-request-id" in missing.headers


async def test_a_key_may_hold_any_characters() -> None:
    async with running_frontend(api_key=("schlüssel-🔑",)) as frontend, frontend.http() as client:
        header = {b"authorization": "Bearer schlüssel-🔑".encode()}
        assert (await client.get("/v1/models", headers=header)).status_code == 200


async def test_a_key_in_the_header_of_anthropics_clients_is_accepted() -> None:
    async with running_frontend(api_key=("first",)) as frontend, frontend.http() as client:
        assert (await client.get("/v1/models", headers={"x-api-key": "first"})).status_code == 200
        wrong = await client.get("/v1/models", headers={"x-api-key": "other"})
        both = await client.get("/v1/models", headers={"x-api-key": "first", "authorization": "Bearer other"})
        health = await client.get("/health", headers={"x-api-key": "first"})
    assert _error(wrong) == (401, "invalid_api_key")
    assert _error(both) == (401, "invalid_api_key"), "a bearer token takes precedence"
    assert "engines" in health.json()


async def test_the_client_library_sends_its_key() -> None:
    async with running_frontend(api_key=("secret",)) as frontend, frontend.openai("secret") as client:
        assert [model.id async for model in client.models.list()] == ["demo", "demo-alias"]


def test_mounted_keys_are_read_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    (tmp_path / "..data").mkdir()
    (tmp_path / "alice").write_text("one\n")
    keys = ApiKeys.of_clients(ServerConfig(api_key=("zero",), api_key_dir=str(tmp_path)))
    assert keys.accept(b"zero")
    assert keys.accept(b"one")
    assert not keys.accept(b"two")
    (tmp_path / "alice").unlink()
    (tmp_path / "bob").write_text("two")
    assert not keys.accept(b"one")
    assert keys.accept(b"two")


def test_a_mounted_secret_is_swapped_by_its_symlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kubelet does it: files link to ..data, which is replaced."""
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    for version, key in (("..v1", "old"), ("..v2", "new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "key").write_text(key)
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "key").symlink_to("..data/key")
    keys = ApiKeys.of_clients(ServerConfig(api_key_dir=str(tmp_path)))
    assert keys.accept(b"old")
    (tmp_path / "..tmp").symlink_to("..v2")
    os.replace(tmp_path / "..tmp", tmp_path / "..data")
    assert not keys.accept(b"old")
    assert keys.accept(b"new")


def test_known_keys_stay_while_the_directory_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    (tmp_path / "key").write_text("one")
    keys = ApiKeys.of_clients(ServerConfig(api_key_dir=str(tmp_path)))
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert keys.accept(b"one")
    assert keys.problem is None


def test_revoked_key_is_refused_next_to_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        if path.name == "locked":
            raise PermissionError(13, "Permission denied")
        return path.read_text()

    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(auth, "_key_in", read)
    (tmp_path / "kept").write_text("one")
    (tmp_path / "revoked").write_text("two")
    keys = ApiKeys.of_clients(ServerConfig(api_key_dir=str(tmp_path)))
    (tmp_path / "revoked").unlink()
    (tmp_path / "locked").write_text("three")
    assert not keys.accept(b"two")
    assert keys.accept(b"one")


SPOILT = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t\n", "is empty"),
    "binary": (b"\x89PNG\xff\xfe", "is not UTF-8 text"),
    "nul": (b"one\0two", "holds line breaks or control characters"),
    "lines": (b"one\ntwo\n", "holds line breaks or control characters"),
    "large": (b"x" * (64 * 1024 + 1), "is larger than 65536 bytes"),
}


@pytest.mark.parametrize(("content", "says"), SPOILT.values(), ids=SPOILT)
def test_file_that_is_not_a_key_accepts_nobody(
    content: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    (tmp_path / "key").write_bytes(content)
    keys = ApiKeys.of_clients(ServerConfig(api_key_dir=str(tmp_path)))
    assert keys.needed
    for guess in (b"", content, content.strip(), content.splitlines()[0] if content else b"", b"one"):
        assert not keys.accept(guess)
    assert keys.problem is not None
    assert f"{tmp_path}/key {says}" in keys.problem
    (tmp_path / "other").write_text("good")
    assert keys.accept(b"good"), "a spoilt file next to a good one does no harm"
    assert keys.problem is None


def test_directory_without_keys_is_a_problem_until_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    folder = tmp_path / "keys"
    folder.mkdir()
    keys = ApiKeys.of_clients(ServerConfig(api_key_dir=str(folder)))
    for state in ("at the start", "emptied", "deleted"):
        assert keys.needed, state
        assert not keys.accept(b""), state
        assert not keys.accept(b"one"), state
        assert keys.problem is not None, state
        assert f"--api-key-dir {folder}" in keys.problem, state
        folder.mkdir(exist_ok=True)
        (folder / "key").write_text("one")
        assert keys.problem is None, state
        assert keys.accept(b"one"), state
        (folder / "key").unlink()
        if state == "emptied":
            folder.rmdir()
    keys.accept(b"one")
    caplog.clear()
    keys.accept(b"one")
    assert not caplog.messages, "logged once, not with each request"


def test_given_keys_serve_without_the_directorys(tmp_path: Path) -> None:
    keys = ApiKeys.of_clients(ServerConfig(api_key=("given",), api_key_dir=str(tmp_path)))
    assert keys.problem is None
    assert keys.accept(b"given")


async def test_frontend_without_a_usable_key_is_unready_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CHECK_INTERVAL", 0.0)
    (tmp_path / "key").write_bytes(b"")
    async with running_frontend(api_key_dir=str(tmp_path)) as frontend, frontend.http() as client:
        unready = await client.get("/health/ready")
        assert unready.status_code == 503
        assert f"{tmp_path}/key is empty" in unready.json()["reason"]
        report = frontend.status.report()
        assert (report.phase, report.reason) == (Phase.STARTING, Reason.INVALID_SPEC)
        assert f"{tmp_path}/key is empty" in report.message
        assert _error(await client.get("/v1/models"))[0] == 401
        assert _error(await client.get("/v1/models", headers={"authorization": "Bearer x"}))[0] == 401
        (tmp_path / "key").write_text("mended")
        assert (await client.get("/health/ready")).status_code == 200
        report = frontend.status.report()
        assert (report.phase, report.reason, report.message) == (Phase.READY, None, "")
        accepted = await client.get("/v1/models", headers={"authorization": "Bearer mended"})
        assert accepted.status_code == 200


def test_a_missing_directory_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key-dir"):
        ApiKeys.of_clients(ServerConfig(api_key_dir=str(tmp_path / "none")))


def _error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]
