"""Programs that the tests of this folder need; without them they are skipped."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def kubectl() -> str:
    return program("kubectl")


@pytest.fixture(scope="session")
def kube_score() -> str:
    return program("kube-score")


def program(name: str) -> str:
    """KUBECTL and KUBE_SCORE name those that are not on the PATH."""
    variable = name.upper().replace("-", "_")
    found = os.environ.get(variable) or shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}; let {variable} name one")
    return found
