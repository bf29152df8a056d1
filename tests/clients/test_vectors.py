"""Replays of client libraries for vectors, against the demo model with --task embed."""

from collections.abc import Iterator

import pytest

from clients.programs import API_KEY, VECTOR_PROGRAMS, NotInstalledError, Program, label, replay
from service.running import Service, running


@pytest.fixture(scope="module")
def vectors() -> Iterator[Service]:
    options = ("--served-model-name", "demo", "--api-key", API_KEY, "--port", "0")
    embed = ("--task", "embed", "--hf-overrides", '{"is_matryoshka": true}')
    with running("serve", "demo://", *options, *embed) as service:
        yield service


@pytest.mark.parametrize("program", VECTOR_PROGRAMS, ids=label)
def test_replays_of_client_for_vectors(program: Program, vectors: Service) -> None:
    try:
        failures = replay(program, f"{vectors.url}/v1")
    except NotInstalledError as missing:
        pytest.skip(str(missing))
    assert not failures, "\n".join(f"{name}: {error}" for name, error in failures.items())
