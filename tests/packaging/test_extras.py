import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDIRECT = {"jinja2", "numpy", "tokenizers"}
"""Packages of one extra that packages of the other need: torch, transformers and llguidance."""
PROGRAM = """
import importlib, pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"this pod has no package {{name}}")

sys.meta_path.insert(0, Missing())
for root in {roots}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.startswith({skipped}):
            importlib.import_module(module.name)
"""


def _packages(requirements: list[str]) -> set[str]:
    return {requirement.partition(">")[0].strip().lower().replace("-", "_") for requirement in requirements}


def _only_of(extra: str, *others: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = _packages(project["dependencies"]).union(*(_packages(extras[other]) for other in others))
    return _packages(extras[extra]) - known - INDIRECT


@pytest.mark.parametrize(
    ("roots", "blocked", "skipped"),
    [
        (
            ("kvasir.engine", "kvasir.executor", "kvasir.worker", "kvasir.models"),
            _only_of("frontend", "engine"),
            ("kvasir.executor.ray_workers", "kvasir.executor.nodes.ray_nodes"),
        ),
        (("kvasir.frontend", "kvasir.client"), _only_of("engine", "frontend"), ("kvasir.nothing",)),
    ],
    ids=["engine", "frontend"],
)
def test_pods_import_no_package_of_the_other_kind(
    roots: tuple[str, ...], blocked: set[str], skipped: tuple[str, ...]
) -> None:
    program = PROGRAM.format(roots=roots, blocked=blocked, skipped=skipped)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
