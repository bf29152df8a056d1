"""Fixtures of the end-to-end tests: the cluster of the run with Kvasir in it, and a namespace per test."""

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
    """End the run before its first test if a test would change a user's cluster without consent."""
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
    """The cluster of KUBECONFIG, the one that is already running, or a new one, with its steps on the terminal."""
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
    """A separate namespace for the test."""
    with restricted_namespace(installed) as namespace:
        yield namespace


@pytest.fixture(scope="session")
def system(installed: Cluster) -> Namespace:
    return Namespace(installed, NAMESPACE)


@pytest.fixture(scope="session")
def expected() -> str:
    """The answer of `kvasir up` on this machine."""
    with running("up", str(DEMO), "--port", "0") as service:
        return ask(service.url)
