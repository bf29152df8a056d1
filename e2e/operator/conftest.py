"""One API server for all of these tests, with the controllers that make pods; and a namespace for each test."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from e2e.kind.apiserver import ApiServer, apiserver
from e2e.operator.world import CONTROLLERS, NAMESPACE, World, install
from kvasir_operator.cluster.client import Cluster
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    with apiserver() as server:
        asyncio.run(install(server))
        # After the CRD: the garbage collector would find it half a minute later.
        with server.controller_manager(*CONTROLLERS):
            yield server


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    cluster = await Cluster.connect(str(server.kubeconfig))
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    await cluster.create(NAMESPACE, "", body)
    yield World(cluster, name, server.kubeconfig)
    # An operator of a later test may watch all namespaces: it must not find the services of this one.
    for service in await cluster.list(INFERENCE_SERVICE, name):
        await cluster.merge(INFERENCE_SERVICE, service, {"metadata": {"finalizers": None}})
        await cluster.delete(INFERENCE_SERVICE, service)
    await cluster.close()
