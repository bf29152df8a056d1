"""Runs a module of bench/ as a command."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_bench(module: str, *options: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(["runtime", "."])}
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
