"""Fixtures: one API server for all of these tests, with the workload controllers, and a namespace for each test."""

import asyncio
import concurrent.futures
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from e2e.kind.apiserver import ApiServer, apiserver
from e2e.operator.harness.world import CONTROLLERS, NAMESPACE, World, install
from kvasir_operator.cluster.cluster_client import Cluster
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    with server_with_controllers() as server:
        yield server


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    async with new_world(server) as world:
        yield world
        # An operator of a later test may watch all namespaces, and must not find the services of this one.
        for service in await world.cluster.list(INFERENCE_SERVICE, world.namespace):
            await world.cluster.merge(INFERENCE_SERVICE, service, {"metadata": {"finalizers": None}})
            await world.cluster.delete(INFERENCE_SERVICE, service)


@pytest.fixture
async def lone_world() -> AsyncIterator[tuple[World, ApiServer]]:
    """A namespace on a separate API server, for an operator that watches all namespaces."""
    with server_with_controllers() as server:
        async with new_world(server) as world:
            yield world, server


@contextlib.contextmanager
def server_with_controllers() -> Iterator[ApiServer]:
    with apiserver() as server:
        # In a thread, because the caller may have a running event loop.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, install(server)).result()
        # After the CRD, which the garbage collector would otherwise find half a minute later.
        with server.controller_manager(*CONTROLLERS):
            yield server


@contextlib.asynccontextmanager
async def new_world(server: ApiServer) -> AsyncIterator[World]:
    cluster = await Cluster.connect(str(server.kubeconfig))
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    await cluster.create(NAMESPACE, "", body)
    yield World(cluster, name, server.kubeconfig)
    await cluster.close()
