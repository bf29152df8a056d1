import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _the_root_logger_stays() -> Iterator[None]:
    """Restore what `setup_logging` changes: its handler writes to a stream that pytest closes after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
