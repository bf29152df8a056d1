import json
import shutil

import pytest

from kvasir.cli import collect_env, main
from kvasir.process import environment_report as environment
from kvasir.process.environment_report import settings_of

SECTIONS = ["kvasir", "machine", "packages", "torch", "gpu", "kubernetes", "settings"]


def test_text_and_json_have_the_same_sections(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.main(["collect-env", "--json"]) == 0
    sections = json.loads(capsys.readouterr().out)
    assert list(sections) == SECTIONS
    assert sections["packages"]["msgspec"]
    monkeypatch.setattr(collect_env, "describe_environment", lambda: sections)  # torch is slow to ask
    assert main.main(["collect-env"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert titles == SECTIONS


def test_of_secrets_is_told_only_that_they_are_set() -> None:
    given = {
        "KVASIR_API_KEY": "sesame",
        "HF_TOKEN": "sesame",
        "HF_ENDPOINT": "https://me:sesame@hub.example/x",
        "KVASIR_PORT": "8000",
        "OMP_NUM_THREADS": "2",
        "HOME": "/sesame",
    }
    shown = settings_of(given)
    assert "sesame" not in json.dumps(shown)
    assert shown["HF_ENDPOINT"] == "https://…@hub.example/x"
    assert (shown["KVASIR_PORT"], shown["OMP_NUM_THREADS"]) == ("8000", "2")
    assert "HOME" not in shown


def test_programs_that_fail_or_are_not_there_are_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_ASK_TORCH", "raise OSError('libcudart.so is missing')")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sections = environment.describe_environment({})
    assert sections["torch"] == {"state": "cannot be imported: OSError: libcudart.so is missing"}
    assert sections["gpu"] == {"state": "nvidia-smi is not here"}
    assert sections["kubernetes"] == {"state": "kubectl is not here"}


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ({"current-context": (1, "", "error: none")}, {"state": "kubectl has no current context"}),
        (
            {"current-context": (0, "prod\n", ""), "version": (1, "", "x\nUnable to connect")},
            {"context": "prod", "state": "not reachable: Unable to connect"},
        ),
        (
            {
                "current-context": (0, "prod\n", ""),
                "version": (0, '{"serverVersion": {"gitVersion": "v1.33.0"}}', ""),
                "get": (1, "", "not found"),
            },
            {"context": "prod", "state": "reachable", "server": "v1.33.0", "crd": "not found"},
        ),
    ],
)
def test_the_cluster_is_told_by_context_and_version(
    answers: dict[str, tuple[int, str, str]], state: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        environment, "_ask", lambda *command: next(answers[word] for word in command if word in answers)
    )
    assert environment._kubernetes({}) == state
