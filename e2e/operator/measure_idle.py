"""Measures memory and requests per minute of an idle operator, with 1 and with 100 services that are Ready.

python -m e2e.operator.measure_idle [--seconds 600] [--services 1 100]

It uses an API server without nodes (e2e.kind.apiserver): the controllers create the pods, and this script writes
their status in place of a kubelet. Then the controllers are stopped, and the API server's own counters are read.
The result is printed as a table for docs/.
"""

import argparse
import asyncio
import re
import ssl
import time
import urllib.request
from pathlib import Path
from typing import Any

from e2e.kind.apiserver import ApiServer, apiserver
from e2e.operator.harness.world import CONTROLLERS, NAMESPACE, World, install
from kvasir_operator.cluster.cluster_client import Cluster

_REQUEST = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NAMESPACE = "measured"
_PATIENCE = 300.0
_AT_ONCE = 4
"""How many services are created at the same time, because each one sends requests until it is ready."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="duration of the measurement (default: 600, two resyncs)"
    )
    parser.add_argument(
        "--services", type=int, nargs="+", default=[1, 100], help="numbers of services (default: 1 100)"
    )
    options = parser.parse_args()
    print("| services | memory of the operator | requests/min | of these |\n|---|---|---|---|")
    for services in options.services:
        with apiserver() as server:
            await install(server)
            print(await _measure(server, services, options.seconds), flush=True)


async def _measure(server: ApiServer, services: int, seconds: float) -> str:
    """Measure, and return a line of the table."""
    cluster = await Cluster.connect(str(server.kubeconfig))
    world = World(cluster, _NAMESPACE, server.kubeconfig)
    await cluster.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
    async with world.operator("--namespaces", "") as operator:
        with server.controller_manager(*CONTROLLERS):
            slots = asyncio.Semaphore(_AT_ONCE)
            await asyncio.gather(*(_add(world, f"service-{number}", slots) for number in range(services)))
        before, began = _requests(server), time.monotonic()
        await asyncio.sleep(seconds)  # the measured period
        minutes = (time.monotonic() - began) / 60
        counts = {key: (count - before.get(key, 0)) / minutes for key, count in _requests(server).items()}
        assert operator.process.returncode is None, operator.log[-10:]
        memory = _memory(operator.process.pid)
    await cluster.close()
    most = sorted(((count, key) for key, count in counts.items() if count >= 0.5), reverse=True)[:4]
    details = ", ".join(f"{key} {count:.0f}" for count, key in most)
    return f"| {services} | {memory:.0f} MB | {sum(counts.values()):.0f} | {details} |"


async def _add(world: World, name: str, slots: asyncio.Semaphore) -> None:
    """Create a service and wait until it is ready."""

    async def pods_are_there() -> bool:
        return len(await world.pods("engine", name)) == 2 and bool(await world.pods("frontend", name))

    async def is_ready() -> bool:
        return bool((await world.condition("Ready", name)).get("status") == "True")

    async with slots:
        await world.create(name, engine={"dataParallelSize": 2})
        await world.eventually(pods_are_there, _PATIENCE)
        await world.make_ready("engine", name)
        await world.make_ready("frontend", name)
        await world.eventually(is_ready, _PATIENCE)


def _requests(server: ApiServer) -> dict[str, float]:
    """Return the requests so far by verb and resource, without those of the API server to itself."""
    token = re.search(r'"token": "(\w+)"', server.kubeconfig.read_text())
    assert token is not None
    context = ssl.create_default_context(cafile=str(server.folder / "apiserver.crt"))
    headers = {"Authorization": f"Bearer {token[1]}"}
    request = urllib.request.Request(f"{server.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, context=context) as answer:
        text = answer.read().decode()
    counts: dict[str, float] = {}
    for match in filter(None, map(_REQUEST.match, text.splitlines())):
        labels: dict[str, Any] = dict(_LABEL.findall(match["labels"]))
        if labels["resource"] in _OURS:
            key = f"{labels['verb']} {labels['resource']}"
            counts[key] = counts.get(key, 0.0) + float(match["count"])
    return counts


_OURS = {"inferenceservices", "leases", "events", "nodes", "pods", "secrets", "serviceaccounts", "services"} | {
    "deployments",
    "networkpolicies",
    "poddisruptionbudgets",
    "statefulsets",
}


def _memory(pid: int) -> float:
    """Return the resident memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000


if __name__ == "__main__":
    asyncio.run(main())
