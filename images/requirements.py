"""Prints what an extra of pyproject.toml needs, one requirement a line: the Dockerfile's layers of dependencies.

Usage: python3 requirements.py PYPROJECT EXTRA. The package's own dependencies are part of it. So there is one list
of dependencies, and a layer is built again only when its own lines change. Standard library only.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extra: str) -> list[str]:
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    if extra not in extras:
        raise SystemExit(f"{pyproject} has no extra {extra!r}; it has {', '.join(sorted(extras))}")
    return sorted(project["dependencies"] + extras[extra])


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2])))
