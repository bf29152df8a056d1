import resource
import subprocess
import sys

import pytest

TITLE = """
import os, sys
from pathlib import Path
from kvasir.process.process_setup import set_process_title
before = Path("/proc/self/environ").read_bytes()
set_process_title("engine rank 0")
print(Path("/proc/self/cmdline").read_text().rstrip("\\0"))
print(Path("/proc/self/environ").read_bytes() == before, "SPT_NOENV" in os.environ)
"""
LIMIT = """
import resource
from kvasir.process.process_setup import raise_open_files_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, HARD))
raise_open_files_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_ps_shows_the_title_and_the_environment_stays() -> None:
    assert run(TITLE) == ["kvasir: engine rank 0", "True False"]


@pytest.mark.parametrize("hard", [64, 128])
def test_the_soft_limit_of_open_files_becomes_the_hard_one(hard: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= hard
    assert run(LIMIT.replace("HARD", str(hard))) == [f"{hard} {hard}"]


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()
