"""The properties of the API server without nodes, and of the tests' watches, on which other tests rely."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config

from e2e.in_cluster import Namespace, Object
from e2e.kind.apiserver import ApiServer, apiserver
from e2e.kind.build import binaries
from e2e.kind.cluster import GivenCluster
from e2e.kind.progress import KindError

ROUNDS = 20
"""Enough that a change falls into the gap in one of them."""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with apiserver() as running:
        yield running


def test_data_and_address_survive_a_restart_of_the_server(server: ApiServer) -> None:
    server.kubectl("create", "namespace", "kept")
    url = server.url
    server.stop()
    with pytest.raises(KindError, match="refused"):
        server.kubectl("get", "namespaces")
    server.start()
    assert server.url == url
    assert "kept" in server.kubectl("get", "namespaces")


def test_a_service_account_has_only_the_permissions_of_rbac(server: ApiServer) -> None:
    server.kubectl("create", "serviceaccount", "reader", "-n", "default")
    server.kubectl("create", "clusterrole", "reader", "--verb=get,list", "--resource=configmaps")
    server.kubectl(
        "create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader"
    )
    account = f"--kubeconfig={server.kubeconfig_of('default', 'reader')}"
    assert "system:serviceaccount:default:reader" in server.kubectl("auth", "whoami", account)
    server.kubectl("get", "configmaps", account)
    with pytest.raises(KindError, match="Forbidden"):
        server.kubectl("get", "secrets", account)


def test_a_watch_of_one_object_misses_no_change(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round changes the object as soon as kubectl has printed it, often before kubectl watches it."""
    kubectl = binaries.ready(binaries.API)["kubectl"]
    monkeypatch.setenv("PATH", f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    namespace = Namespace(GivenCluster(server.kubeconfig), "default")
    namespace.kubectl("create", "configmap", "counter", "--from-literal=round=none")
    with new_client_from_config(str(server.kubeconfig)) as client:  # type: ignore[no-untyped-call]
        for number in range(ROUNDS):
            is_asked = False

            def is_counted(seen: Mapping[str, Object], number: str = str(number)) -> bool:
                nonlocal is_asked
                if not is_asked:
                    is_asked = True
                    patch = {"data": {"round": number}}
                    CoreV1Api(client).patch_namespaced_config_map("counter", "default", patch)
                return bool(seen["counter"]["data"]["round"] == number)

            namespace.until("configmaps/counter", is_counted, 10)


def test_nothing_of_it_is_left() -> None:
    with apiserver() as other:
        folder, pids = other.folder, other.pids()
        assert len(pids) == 2
    assert not folder.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
