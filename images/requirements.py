"""Print the requirements of extras in pyproject.toml, one per line, for the Dockerfile's dependency layers.

Usage: python3 requirements.py PYPROJECT EXTRA… A layer is rebuilt only if its own lines change.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PINNED = {"torch": "2.11.0"}  # measured on a GPU; later ones need a newer driver


def requirements(pyproject: Path, wanted: Sequence[str]) -> list[str]:
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in wanted:
        if extra not in extras:
            raise SystemExit(f"{pyproject} has no extra {extra!r}; it has {', '.join(sorted(extras))}")
    lines = project["dependencies"] + [line for extra in wanted for line in extras[extra]]
    return sorted(pinned(line) for line in lines)


def pinned(line: str) -> str:
    name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
    return f"{name}=={PINNED[name]}" if name in PINNED else line


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
