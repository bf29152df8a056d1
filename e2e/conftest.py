"""The cluster of a run of end-to-end tests, Kvasir in it, and a namespace for each test."""

import sys
from collections.abc import Iterator

import pytest

from e2e.in_cluster import Namespace, restricted_namespace
from e2e.installed import DEMO, NAMESPACE, install
from e2e.kind.cluster import Cluster, require_consent
from e2e.kind.cluster import cluster as a_cluster
from e2e.kind.progress import KindError
from e2e.service.ask import ask
from service.running import running


def pytest_collection_finish(session: pytest.Session) -> None:
    """End the run before its first test if one of them would change a cluster of the user's without consent."""
    if session.config.option.collectonly or not any(
        "cluster" in getattr(item, "fixturenames", ()) for item in session.items
    ):
        return
    try:
        require_consent()
    except KindError as refusal:
        pytest.exit(str(refusal), returncode=pytest.ExitCode.USAGE_ERROR)


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


@pytest.fixture(scope="session")
def installed(cluster: Cluster, pytestconfig: pytest.Config) -> Cluster:
    """The cluster with Kvasir in it."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        install(cluster, sys.stdout)
    return cluster


@pytest.fixture
def restricted(installed: Cluster) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    with restricted_namespace(installed) as namespace:
        yield namespace


@pytest.fixture(scope="session")
def system(installed: Cluster) -> Namespace:
    return Namespace(installed, NAMESPACE)


@pytest.fixture(scope="session")
def expected() -> str:
    """What `kvasir up` answers on this machine."""
    with running("up", str(DEMO), "--port", "0") as service:
        return ask(service.url)
