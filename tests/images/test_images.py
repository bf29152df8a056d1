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
IMAGES = build.TARGETS


def stage(name: str) -> str:
    (found,) = re.findall(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_an_image_installs_exactly_its_lock() -> None:
    for image in ("operator", "frontend"):
        assert f"--no-deps --require-hashes \\\n      -r /opt/kvasir/{image}.txt" in stage(image)
    assert "lock=engine \\" in stage("engine")
    assert "--no-deps --require-hashes -r /opt/kvasir/$lock.txt" in stage("engine")


@pytest.mark.parametrize("image", ["engine", "engine-cpu"])
def test_another_index_serves_only_torch(image: str) -> None:
    """The other packages are those of the lock without torch, and their hashes are checked."""
    served = re.findall(r'--index-url "\$\w+" "\$\(grep -o (\S+) ', stage(image))
    assert served == ["'^torch==[0-9.]*'"]
    assert {"engine": "lock=engine-cpu", "engine-cpu": "-r /opt/kvasir/engine-cpu.txt"}[image] in stage(image)


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
