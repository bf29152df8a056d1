"""`kvasir up`: mistakes are reported before any process starts; the processes match the manifest."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli import main, up
from kvasir.local import prepare
from kvasir.local.place import open_place
from kvasir.local.run import LocalService

DEMO = Path(__file__).parents[3] / "manifests" / "examples" / "demo.yaml"


@pytest.fixture(autouse=True)
def _state_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_variables_of_vllm_are_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert capfd.readouterr().err == ("kvasir up: warning: no effect: VLLM_API_KEY; give options in the manifest\n")


def run_without_starting(monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[LocalService]:
    seen: list[LocalService] = []

    def keep(services: Sequence[LocalService]) -> None:
        seen.extend(services)

    monkeypatch.setattr(up, "run_services", keep)
    assert main.main(["up", *argv]) == 0
    return seen


def test_the_demo_has_a_frontend_and_two_ranks_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (demo,) = run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert [spec.name for spec in demo.processes] == ["frontend-0", "engine-0", "engine-1"]
    assert demo.served_name == "demo"
    assert demo.use == "chat"


def test_a_manifest_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    give_input(monkeypatch, DEMO.read_bytes())
    (demo,) = run_without_starting(monkeypatch, "-", "--port", "0")
    assert demo.served_name == "demo"
    for wrong, message in (
        (b"", "there is no InferenceService in it"),
        (b"caf\xe9", "not UTF-8"),
        (b"{", "not YAML"),
    ):
        give_input(monkeypatch, wrong)
        assert main.main(["up", "-"]) == 2
        assert capfd.readouterr().err.startswith(f"kvasir up: standard input: {message}")


def give_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_service_with_a_certificate_is_shown_with_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "service.yaml"
    extra = "spec:\n  frontend: {extraArgs: [--ssl-certfile=tls.pem]}"
    path.write_text(DEMO.read_text().replace("spec:", extra))
    (service,) = run_without_starting(monkeypatch, str(path), "--port", "0")
    assert service.https


def test_private_directories_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    (demo,) = run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert not demo.place.directory.exists()
    assert demo.place.listener.fileno() == -1


def test_services_of_one_manifest_take_consecutive_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_any_port(*args: Any, port: int, **rest: Any) -> Any:
        opened.append(port)
        return open_place(*args, port=0, **rest)

    monkeypatch.setattr(prepare, "open_place", open_any_port)
    text = DEMO.read_text()
    path = tmp_path / "two.yaml"
    path.write_text(f"{text}---\n{text.replace('name: demo', 'name: other')}")
    services = run_without_starting(monkeypatch, str(path), "--port", "18000")
    assert opened == [18000, 18001]
    assert [service.place.service for service in services] == ["demo", "other"]


def test_services_without_a_port_left_for_each_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = DEMO.read_text()
    path = tmp_path / "two.yaml"
    path.write_text(f"{text}---\n{text.replace('name: demo', 'name: other')}")
    assert main.main(["up", str(path), "--port", "65535"]) == 2
    assert "--port 65535: 2 services take the ports up to 65536" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'resourceName: ""',
            "resourceName: nvidia.com/gpu",
            "there is no GPU here, and 2 engines need one each: set",
        ),
        ('resourceName: ""', "resourceName: amd.com/gpu", "without a cluster only nvidia.com/gpu can be found"),
        (
            "source: demo://",
            "source: file:///no/such/model",
            "InferenceService demo: spec.model.source: /no/such/model does not exist",
        ),
        ("memory: 64Mi", "memory: -1", "spec.engine.kvCache.memory: -1 is too small: at least 1"),
        ("source: demo://", "sauce: demo://", "spec.model.sauce: unknown field; did you mean source?"),
        ("spec:", "spec:\n  frontend: {apiKeys: {name: keys}}", "InferenceService demo: Secret keys"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up, "run_services", lambda services: pytest.fail("it was started"))
    path = tmp_path / "service.yaml"
    path.write_text(DEMO.read_text().replace(old, new))
    assert main.main(["up", str(path), "--port", "0"]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_port_in_use_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    place = open_place("x", host="127.0.0.1", port=0, frontends=1, engines=1)
    try:
        port = place.listener.getsockname()[1]
        assert main.main(["up", str(DEMO), "--port", str(port)]) == 2
        assert f"--port {port} is in use on 127.0.0.1: choose another one" in capfd.readouterr().err
    finally:
        place.close()


def test_fields_without_effect_here_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(DEMO.read_text().replace("spec:", "spec:\n  image: x"))
    run_without_starting(monkeypatch, str(path), "--port", "0")
    assert "without a cluster these have no effect: spec.image" in capfd.readouterr().out
