"""The wheel with the packages of one extra: its commands run, and the others name the extra that they need.

The packages are those of this environment, as links: nothing is downloaded.
"""

import functools
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kvasir_contract.extras import DISTRIBUTION
from wheel_tree import Tree

Install = Callable[..., Path]
"""Gets the names of extras and returns the interpreter that has them."""
MODULE = "kvasir.cli.main"


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    wheel = Tree(tmp_path_factory.mktemp("wheel"), libraries=True).wheel()

    @functools.cache
    def install(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        for found in _closure(next(iter(Distribution.discover(name=DISTRIBUTION, path=[str(site)]))), set(extras)):
            _link(found, site)
        return folder / "bin" / "python"

    return install


def _closure(root: Distribution, extras: set[str]) -> Iterator[Distribution]:
    todo, seen = [(root, extras)], set[tuple[str, str]]()
    while todo:
        at, wanted = todo.pop()
        for requirement in map(Requirement, at.requires or ()):
            if requirement.marker and not any(
                requirement.marker.evaluate({"extra": each}) for each in {"", *wanted}
            ):
                continue
            for extra in {"", *requirement.extras}:
                if (requirement.name, extra) not in seen:
                    seen.add((requirement.name, extra))
                    try:
                        found = distribution(requirement.name)
                    except PackageNotFoundError:
                        pytest.skip(f"{requirement.name} is not installed here")
                    todo.append((found, {extra}))
                    yield found


def _link(package: Distribution, site: Path) -> None:
    for file in package.files or ():
        source, target = Path(str(package.locate_file(""))), site
        for part in file.parts if ".." not in file.parts else ():
            source, target = source / part, target / part
            if target.is_symlink() or not source.exists():
                break
            is_namespace = (
                source.is_dir() and not (source / "__init__.py").exists() and source.suffix != ".dist-info"
            )
            if not is_namespace:
                target.symlink_to(source)
                break
            target.mkdir(exist_ok=True)


def run(python: Path, module: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, "-m", module, *argv], cwd=python.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("extras", "commands"),
    [
        ((), ["--help", "up --help", "serve --help", "chat --help", "complete --help", "run-batch --help"]),
        (
            (),
            ["bench serve --help", "chaos --help", "collect-env", "completion", "frontend --help", "engine --help"],
        ),
        (("bench",), ["bench serve --help", "bench startup --help", "chaos --help"]),
        (("frontend",), ["frontend --help"]),
        (("engine",), ["engine --help", "bench latency --help"]),
    ],
)
def test_commands_run_with_their_extra_alone(
    extras: tuple[str, ...], commands: list[str], install: Install
) -> None:
    python = install(*extras)
    for command in commands:
        ended = run(python, MODULE, *command.split())
        assert (ended.returncode, ended.stderr) == (0, ""), command


@pytest.mark.parametrize(
    ("extras", "command", "missing"),
    [
        ((), "serve demo://", "frontend,engine"),
        (("engine",), "serve demo://", "frontend,engine"),
        ((), "bench serve 127.0.0.1:9", "bench"),
        ((), "chaos 127.0.0.1:9", "bench"),
        ((), "frontend demo:// --link ipc:///tmp/none", "frontend"),
        (("bench",), "bench latency demo://", "frontend,engine"),
    ],
)
def test_commands_name_the_extra_that_is_missing(
    extras: tuple[str, ...], command: str, missing: str, install: Install
) -> None:
    ended = run(install(*extras), MODULE, *command.split())
    assert ended.returncode == 2
    first = ended.stderr.splitlines()[0]
    assert first.endswith(f"is not installed: pip install '{DISTRIBUTION}[{missing}]'")
    assert "Traceback" not in ended.stderr


def test_the_extra_bench_is_enough_to_measure_a_server(install: Install) -> None:
    ended = run(install("bench"), MODULE, "bench", "serve", "127.0.0.1:9")
    assert ended.returncode == 1
    assert ended.stderr.startswith("kvasir bench: no OpenAI server answers at http://127.0.0.1:9")


def test_the_operator_runs_with_its_extra_alone(install: Install) -> None:
    assert run(install("operator"), "kvasir_operator", "--help").returncode == 0


def test_the_operator_without_its_extra_is_one_line(install: Install) -> None:
    ended = run(install("frontend", "engine"), "kvasir_operator", "--help")
    assert ended.returncode == 2
    assert ended.stderr == f"kvasir-operator: kopf is not installed: pip install '{DISTRIBUTION}[operator]'\n"


def test_frontend_and_engine_are_enough_to_answer(install: Install, tmp_path: Path) -> None:
    python = install("frontend", "engine")
    body = {"prompt": "Kvasir is", "max_tokens": 4, "temperature": 0}
    (tmp_path / "in").write_text(json.dumps({"custom_id": "a", "url": "/v1/completions", "body": body}) + "\n")
    files = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    ended = run(python, MODULE, "run-batch", *files, "demo://")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    answer = json.loads((tmp_path / "out").read_text())
    assert answer["response"]["body"]["choices"][0]["text"] == " a serving system for"


@pytest.mark.parametrize(("extra", "module"), [("otel", "opentelemetry.sdk.trace"), ("ray", "ray")])
def test_other_extras_bring_their_packages(extra: str, module: str, install: Install) -> None:
    python = install(extra)
    assert subprocess.run([python, "-c", f"import {module}"], check=False).returncode == 0
