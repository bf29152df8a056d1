"""The cluster of a run of end-to-end tests."""

from collections.abc import Iterator

import pytest

from e2e.kind.cluster import Cluster
from e2e.kind.cluster import cluster as a_cluster


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """That of KUBECONFIG, or the one that is up, or one made for this run; its steps are shown as they go."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    made = a_cluster()
    with capture.global_and_fixture_disabled():
        running = made.__enter__()
    try:
        yield running
    finally:
        made.__exit__(None, None, None)
