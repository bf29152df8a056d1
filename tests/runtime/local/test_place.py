import contextlib
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.local.place import Place, PrivateDirectory, open_place


@pytest.fixture(autouse=True)
def _state_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def place() -> Iterator[Place]:
    opened = open_place("demo", host="127.0.0.1", port=0, frontends=2, engines=3)
    yield opened
    opened.close()


def test_engines_connect_to_all_frontends_and_have_own_ports(place: Place) -> None:
    engines = [place.engine_env(rank) for rank in range(3)]
    frontends = [place.frontend_env(number) for number in range(2)]
    assert {env["KVASIR_LINK"] for env in engines} == {",".join(env["KVASIR_LINK"] for env in frontends)}
    assert len({env["KVASIR_OPS_PORT"] for env in engines}) == 3
    assert len({env["KVASIR_OPS_PORT"] for env in (*engines, *frontends)}) == 5
    assert [env["KVASIR_DATA_PARALLEL_RANK"] for env in engines] == ["0", "1", "2"]
    assert {env["KVASIR_DATA_PARALLEL_SIZE_LOCAL"] for env in engines} == {"3"}
    assert len({env["KVASIR_SERVICE_UID"] for env in (*engines, *frontends)}) == 1


@pytest.mark.parametrize(
    ("gpus", "visible"), [("012", ["0", "1", "2"]), ("012345", ["0,1", "2,3", "4,5"]), ("", [None] * 3)]
)
def test_engines_share_no_gpu(gpus: str, visible: list[str | None]) -> None:
    place = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=3, gpus=list(gpus))
    try:
        assert [place.engine_env(rank).get("CUDA_VISIBLE_DEVICES") for rank in range(3)] == visible
    finally:
        place.close()


def test_link_addresses_are_short_private_and_gone_at_the_end(place: Place) -> None:
    assert all(len(link.removeprefix("ipc://")) < 107 for link in place.links)
    assert stat.S_IMODE(place.directory.stat().st_mode) == 0o700
    place.close()
    assert not place.directory.exists()


def test_secrets_are_written_for_this_user_only(place: Place) -> None:
    directory = place.write_secrets("api-keys", {"a": "key one"})
    assert (directory / "a").read_text() == "key one"
    assert stat.S_IMODE((directory / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("key", ["../x", "/tmp/kvasir-hostile", "a/b", "..", ".", "", "a\0b"])
def test_a_secret_is_never_written_outside_its_directory(place: Place, key: str) -> None:
    before = sorted(place.directory.rglob("*"))
    with pytest.raises(ConfigError, match="cannot be the name of a file"):
        place.write_secrets("api-keys", {"good": "one", key: "two"})
    assert sorted(place.directory.rglob("*")) == before, "not even the good one"


def test_a_port_in_use_is_told_before_anything_is_started(place: Place) -> None:
    port = place.listener.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"--port {port} is in use on 127\.0\.0\.1: choose another one"):
        open_place("other", host="127.0.0.1", port=port, frontends=1, engines=1)


def test_an_unknown_host_is_told() -> None:
    with pytest.raises(ConfigError, match="--host not a host"):
        open_place("demo", host="not a host", port=0, frontends=1, engines=1)


def test_an_address_of_another_machine_is_told_as_that() -> None:
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1 is not an address of this machine: use"):
        open_place("demo", host="192.0.2.1", port=0, frontends=1, engines=1)


def test_clients_wait_while_the_frontend_starts(place: Place) -> None:
    with socket.create_connection(place.listener.getsockname(), timeout=5):
        pass


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("*", "127.0.0.1")]
)
def test_url_can_be_opened_as_it_is(host: str, shown: str) -> None:
    opened = open_place("demo", host=host, port=0, frontends=1, engines=1)
    try:
        assert opened.url == f"http://{shown}:{opened.listener.getsockname()[1]}"
    finally:
        opened.close()


def test_two_services_of_one_name_keep_separate_logs(place: Place) -> None:
    other = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)
    try:
        assert other.logs != place.logs
    finally:
        other.close()


def test_a_state_directory_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_STATE_HOME"):
        open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)


def test_a_client_that_comes_after_the_end_began_is_refused(place: Place) -> None:
    address = place.listener.getsockname()
    place.stop_listening()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass


def test_the_next_start_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from kvasir.local.place import PrivateDirectory
directory = PrivateDirectory(Path({str(tmp_path)!r}))
(directory.path / "key").write_text("secret")
print(directory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    in_use, stranger = PrivateDirectory(tmp_path), tmp_path / "kvasir-of-somebody"
    stranger.mkdir()
    killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert left.exists()
    with contextlib.closing(PrivateDirectory(tmp_path)):
        assert not left.exists()
        assert in_use.path.exists()
        assert stranger.exists()
    in_use.close()
    assert list(tmp_path.iterdir()) == [stranger]


def test_a_unix_socket_has_a_file_while_it_listens() -> None:
    with tempfile.TemporaryDirectory(prefix="kvs-", dir="/tmp") as folder:
        path = f"{folder}/http"
        place = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1, uds=path)
        try:
            assert place.socket_file == path
            assert place.logs.name == f"demo-{folder[1:].replace('/', '-')}-http"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
            with pytest.raises(ConfigError, match=f"--uds {path}: a process listens there"):
                open_place("other", host="127.0.0.1", port=0, frontends=1, engines=1, uds=path)
            place.stop_listening()
            assert not Path(path).exists()
        finally:
            place.close()


def test_each_engine_has_a_black_box_of_the_service(place: Place) -> None:
    boxes = {Path(place.engine_env(rank)["KVASIR_BLACK_BOX"]) for rank in range(len(place.engine_ops_ports))}
    assert len(boxes) == len(place.engine_ops_ports)
    assert {box.parent for box in boxes} == {place.directory}
