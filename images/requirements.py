"""Print the requirements of extras in pyproject.toml, one per line, for the Dockerfile's dependency layers.

Usage: python3 requirements.py PYPROJECT EXTRA… The output includes the package's own dependencies. There is one
list of dependencies, and a layer is rebuilt only if its own lines change. Standard library only.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(pyproject: Path, wanted: Sequence[str]) -> list[str]:
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in wanted:
        if extra not in extras:
            raise SystemExit(f"{pyproject} has no extra {extra!r}; it has {', '.join(sorted(extras))}")
    return sorted(project["dependencies"] + [line for extra in wanted for line in extras[extra]])


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
