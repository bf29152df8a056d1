import subprocess
import sys

import pytest

PURE = (
    *("spec", "resources.children", "plan.plan", "plan.text", "observe.objects", "observe.pod_state"),
    *("operator_settings", "cluster.workqueue", "upgrades"),
)


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_load_no_client(module: str) -> None:
    loaded = loaded_by(f"kvasir_operator.{module}")
    assert not loaded & {"kopf", "kubernetes", "aiohttp", "kvasir"}


def test_the_operator_loads_neither_typed_models_nor_the_runtime() -> None:
    loaded = loaded_by("kvasir_operator.operator_process")
    assert "kvasir" not in loaded
    assert "torch" not in loaded
    assert not [name for name in loaded if name.startswith("kubernetes.aio.client.models.v1_pod")]


@pytest.mark.parametrize("package", ["kopf", "aiohttp", "kubernetes"])
def test_the_command_names_a_missing_package_and_its_extra(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from kvasir_operator.__main__ import run; sys.exit(run())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("kvasir-operator: ")
    assert ended.stderr.endswith("is not installed: pip install 'kvasir-serve[operator]'\n")
    assert ended.stderr.count("\n") == 1


def test_the_operator_runs_with_closed_streams() -> None:
    command = ["bash", "-c", 'exec "$0" -m kvasir_operator --help <&- >&- 2>&-', sys.executable]
    assert subprocess.run(command, check=False).returncode == 0
