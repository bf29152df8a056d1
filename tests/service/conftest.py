"""One service of two ranks for all tests that only use it."""

from collections.abc import Iterator

import pytest

from service.running import Service, running


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """The demo on two ranks, by the very manifest of the README, on any free port."""
    with running("up", "manifests/examples/demo.yaml", "--port", "0") as service:
        yield service
