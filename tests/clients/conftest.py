"""One service of the demo model for all clients."""

from collections.abc import Iterator

import pytest

from clients.programs import API_KEY
from service.running import Service, running


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    options = ("--served-model-name", "demo", "--api-key", API_KEY, "--port", "0")
    with running("serve", "demo://", *options) as service:
        yield service
