"""The properties of the API server without nodes on which the operator's tests rely."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.kind.apiserver import ApiServer, apiserver
from e2e.kind.progress import KindError


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


def test_nothing_of_it_is_left() -> None:
    with apiserver() as other:
        folder, pids = other.folder, other.pids()
        assert len(pids) == 2
    assert not folder.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
