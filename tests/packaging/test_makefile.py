"""When make installs the package again, the checks of `make lint`, and the help."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPU = "runtime/kvasir/kernels/cpu"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return an environment in the state after an install."""
    for name in ("bin/python", ".run", ".dev"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def would_do(environment: Path, *changed: str) -> str:
    edited = [word for path in changed for word in ("-W", path)]
    command = ["make", "--dry-run", *edited, f"VENV={environment}", f"{environment}/.run", f"{environment}/.dev"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_does_not_install_an_installed_package_again(environment: Path) -> None:
    assert "install_packages" not in would_do(environment)
    assert "install_packages" not in would_do(environment, "runtime/kvasir/request/params.py")


@pytest.mark.parametrize(
    "path",
    [
        *("pyproject.toml", "hatch_build.py"),
        *(f"{CPU}/{path.name}" for path in (ROOT / CPU).iterdir() if path.suffix in (".c", ".h", ".inc")),
    ],
)
def test_make_installs_again_after_a_change_of_a_build_input(environment: Path, path: str) -> None:
    assert would_do(environment, path).count("tools/install_packages.py") == 2


def test_help_lists_every_target_with_a_description() -> None:
    described = re.findall(r"^([^\s:]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\S+)", shown, re.MULTILINE) == described


def commands_of(target: str, environment: Path) -> str:
    command = ["make", "--dry-run", target, f"VENV={environment}", f"BIN={environment}/bin"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_what_make_test_leaves_out_is_run_by_another_target(environment: Path) -> None:
    left_out = re.findall(r"--ignore=(\S+)", commands_of("test", environment))
    targets = re.findall(r"^(test-[a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    others = "".join(commands_of(target, environment) for target in targets)
    assert left_out
    assert [path for path in left_out if not (ROOT / path).exists()] == []
    assert [path for path in left_out if not re.search(rf"-m pytest\b.* {re.escape(path)}\b", others)] == []


def test_lint_runs_every_check(environment: Path) -> None:
    commands = commands_of("lint", environment)
    checks = ("ruff check", "ruff format --check", "bin/mypy", "lint-imports", "-m tools.check_words")
    assert [check for check in checks if check not in commands] == []


def test_rules_use_variables_that_are_defined() -> None:
    text = (ROOT / "Makefile").read_text()
    defined = set(re.findall(r"^([A-Z_]+)\s*[:?]?=", text, re.MULTILINE)) | {"MAKEFILE_LIST"}
    used = {name for name in re.findall(r"\$\(([A-Z_]+)\b", text) if not name.endswith("_ARGS")}
    assert used <= defined
