"""Replays of what applications do with the client libraries of every day, by the libraries themselves."""

import pytest

from clients.programs import PROGRAMS, TOOL_PROGRAMS, NotInstalledError, Program, label, replay
from service.running import Service


@pytest.mark.parametrize("program", [*PROGRAMS, *TOOL_PROGRAMS], ids=label)
def test_replays_of_client(program: Program, service: Service) -> None:
    try:
        failures = replay(program, f"{service.url}/v1")
    except NotInstalledError as missing:
        pytest.skip(str(missing))
    assert not failures, "\n".join(f"{name}: {error}" for name, error in failures.items())
