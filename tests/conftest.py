import atexit
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# HYPOTHESIS_PROFILE=full: as many examples as CI runs. A test with a number of its own keeps it.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("full", max_examples=300, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Triton reads it when a kernel is defined, also those of its own library: before any test imports triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

# OpenMP reads it when torch is imported. Threads that spin while they wait take the cores of other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure() -> None:
    """Programs under test must end at Ctrl-C also if a shell started pytest in the background, without SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Compute with one thread, because the processes of a run share the cores. Tests of several set their number.

    Collections of garbage skip the modules and tests that are loaded by now: each worker that ends starts one.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # otherwise nanobind reports leaks


@pytest.fixture(autouse=True)
def _the_root_logger_stays() -> Iterator[None]:
    """Restore what `setup_logging` changes: its handler writes to a stream that pytest closes after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
