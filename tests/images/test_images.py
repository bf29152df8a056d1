"""The Dockerfile, .dockerignore, the build script and pyproject.toml agree with each other."""

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from images import build

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "images/Dockerfile").read_text()
IMAGES = ("operator", "frontend", "engine")


def stage(name: str) -> str:
    (found,) = re.findall(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return str(found)


def requirements(*extras: str) -> list[str]:
    command = [sys.executable, str(ROOT / "images/requirements.py"), str(ROOT / "pyproject.toml"), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def distribution(requirement: str) -> str:
    return re.split(r"[^a-z0-9-]", requirement)[0]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_gets_the_requirements_of_its_extra(image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][image]]
    assert set(requirements(image)) == {"torch==2.11.0" if line.startswith("torch>") else line for line in lines}


def test_the_frontend_image_can_send_traces() -> None:
    assert "print frontend otel > /requirements/frontend.txt" in stage("requirements")
    packages = set(map(distribution, requirements("frontend", "otel")))
    assert {"starlette", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"} <= packages


@pytest.mark.parametrize("image", ["operator", "frontend"])
def test_only_the_engine_brings_torch(image: str) -> None:
    assert "torch" not in map(distribution, requirements(image))


def test_the_torch_index_serves_only_torch() -> None:
    assert "grep '^torch'" in stage("engine")
    assert [distribution(line) for line in requirements("engine") if line.startswith("torch")] == ["torch"]


def test_a_missing_extra_is_rejected_by_name() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        requirements("operaator")
    assert "no extra 'operaator'" in refused.value.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_code_is_the_last_layer_and_runs_as_a_numeric_user(image: str) -> None:
    steps = re.findall(r"^(COPY|RUN|LABEL|USER|ENTRYPOINT)\b(.*)$", stage(image), re.MULTILINE)
    layers = [arguments.strip() for name, arguments in steps if name in ("COPY", "RUN")]
    assert layers[-1] == "--from=code /code /"
    assert [arguments.strip() for name, arguments in steps if name == "USER"] == ["65532:65532"]


def test_the_build_context_is_the_files_that_are_copied() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    script = (ROOT / "images/build.py").read_text()
    (context,) = re.findall(r"^CONTEXT: Final = \((.*?)^\)$", script, re.MULTILINE | re.DOTALL)
    assert allowed == {path for line in copied for path in line.split()} == set(re.findall(r'"(.*?)"', context))


def test_the_wheel_is_built_with_the_tools_of_the_project() -> None:
    """With --no-build-isolation, pip installs neither the build backend nor the kernels' compiler."""
    (installed,) = re.findall(r"pip install --quiet (.*)$", stage("tools"), re.MULTILINE)
    builder = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (compiler,) = re.findall(r'^COMPILER: Final = "(.*)"$', (ROOT / "hatch_build.py").read_text(), re.MULTILINE)
    assert shlex.split(installed) == [*builder, compiler]


def test_the_command_of_the_images_starts_with_sigterm_blocked(tmp_path: Path) -> None:
    """The image's edit of pip's script, applied to one that prints the blocked signals."""
    script = tmp_path / "kvasir"
    script.write_text(f"#!{sys.executable}\nimport signal\nprint(*signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n")
    script.chmod(0o755)
    (edit,) = re.findall(r"sed -i '(.*)' /code/opt/kvasir/bin/kvasir", stage("code"))
    subprocess.run(["sed", "-i", edit, script], check=True)
    result = subprocess.run([script], capture_output=True, text=True, check=True)
    assert result.stdout == f"{int(signal.SIGTERM)}\n"


def test_build_artefacts_in_the_tree_change_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "runtime/__pycache__").mkdir(parents=True)
    (tmp_path / "runtime/kernels.c").write_text("")
    before = build.digest(("runtime",), ())
    (tmp_path / "runtime/kernels.so").write_text("")
    (tmp_path / "runtime/__pycache__/kernels.pyc").write_text("")
    assert build.digest(("runtime",), ()) == before
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[-2:] == [
        "**/__pycache__",
        "**/*.so",
    ]  # the last match counts


def test_both_bases_are_prepared_in_the_same_way() -> None:
    """The engine's has a compiler, and a Dockerfile cannot share the lines."""
    stages = re.split(r"^FROM ", (ROOT / "images/Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    steps = {}
    for stage in stages:
        head, _, rest = stage.partition("\n")
        steps[head.rpartition(" ")[2]] = [line for line in rest.splitlines() if line and not line.startswith("#")]
    assert steps["python"] == steps["engine-python"] != []
