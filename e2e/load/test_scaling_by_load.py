"""An open-loop load takes a service from one engine to three and back. The operator is killed at each step.

Their worker sleeps in each step, so that more engines compute more on a machine with few cores.
"""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import pytest
import yaml

from e2e.in_cluster import Namespace, Object, restricted_namespace
from e2e.installed import DEMO
from e2e.kind.cluster import Cluster

PATIENCE_SECONDS = 300
BODY = {
    "model": "demo",
    "prompt": "A pod is",
    "max_tokens": 24,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}
OVERLOAD = 2.0
"""The load, in engines."""
MEASURED = 12
"""Requests that measure the capacity of an engine."""
ROWS = 2
SETTLED_SECONDS = 90.0
"""For the backlog, with three engines."""
MEASURED_SECONDS = 30.0
SLOW_WORKER = """
import time
from kvasir.worker.worker import Worker

class SlowWorker(Worker):
    def execute(self, *arguments):
        time.sleep(0.06)
        return super().execute(*arguments)
"""
PACKAGE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "slow"},
    "data": {
        "code": SLOW_WORKER,
        "metadata": "Metadata-Version: 2.1\nName: slow\nVersion: 1\n",
        "entries": "[kvasir.workers]\nslow = slow_worker:SlowWorker\n",
    },
}
"""An installed package with a worker class for --worker-cls."""
FILES = {
    "code": "slow_worker.py",
    "metadata": "slow-1.dist-info/METADATA",
    "entries": "slow-1.dist-info/entry_points.txt",
}
ITEMS = [{"key": key, "path": path} for key, path in FILES.items()]
SLOW_POD = {
    "env": [{"name": "PYTHONPATH", "value": "/slow"}],
    "volumeMounts": [{"name": "slow", "mountPath": "/slow"}],
    "volumes": [{"name": "slow", "configMap": {"name": "slow", "items": ITEMS}}],
}
AUTOSCALING = {"minRanks": 1, "maxRanks": 3, "targets": {"queueSeconds": 1}, "scaleDownAfter": "40s"}


@dataclass
class OpenLoop:
    """Starts requests at a fixed rate, whether earlier ones have ended or not."""

    url: str
    rate: float
    stopped: threading.Event = field(default_factory=threading.Event)
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    """Start of each request, and seconds until its first token."""
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits) as client,
            asyncio.TaskGroup() as group,
        ):
            begin, number = time.monotonic(), 0
            while not self.stopped.is_set():
                group.create_task(self._ask(client))
                number += 1
                await asyncio.sleep(max(0.0, begin + number / self.rate - time.monotonic()))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        began, first, last = time.monotonic(), None, ""
        try:
            async with client.stream("POST", f"{self.url}/v1/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        first, last = first or time.monotonic(), line
        except httpx.HTTPError as error:
            last = repr(error)
        if first is None or last != "data: [DONE]":
            self.failures.append(last)
        else:
            self.first_tokens.append((began, first - began))

    def p95(self, since: float, until: float) -> float:
        found = sorted(seconds for began, seconds in self.first_tokens if since <= began < until)
        assert found, "no request began in this time"
        return found[int(0.95 * (len(found) - 1))]


@pytest.fixture
def one_engine(installed: Cluster) -> Iterator[Namespace]:
    manifest = yaml.safe_load(DEMO.read_text())
    slow = {"extraArgs": ["--worker-cls=slow"], "pod": SLOW_POD}
    manifest["spec"]["engine"] |= {"dataParallelSize": 1, "maxNumSeqs": ROWS, "dtype": "float32", **slow}
    manifest["spec"]["autoscaling"] = AUTOSCALING
    with restricted_namespace(installed) as namespace:
        namespace.apply(PACKAGE)
        namespace.apply(manifest)
        namespace.wait_for_ranks("demo", 1, PATIENCE_SECONDS)
        yield namespace


def test_load_takes_a_service_to_three_engines_and_back(one_engine: Namespace, system: Namespace) -> None:
    sizes = [1]
    with one_engine.forwarded("service/demo", 80) as url:
        rate = OVERLOAD * capacity(url)
        load = OpenLoop(url, rate)
        thread = threading.Thread(target=load.run)
        began = time.monotonic()
        thread.start()
        try:
            while sizes[-1] < 3:
                follow(one_engine, system, sizes)
            one_engine.until("kvs/demo", lambda seen: ready(seen) == 3, PATIENCE_SECONDS)
            served = time.monotonic()
            thread.join(SETTLED_SECONDS + MEASURED_SECONDS)
        finally:
            load.stopped.set()
        thread.join()
        before, after = load.p95(began, served), load.p95(served + SETTLED_SECONDS, time.monotonic())
        print(
            f"{len(load.first_tokens)} requests, {rate:.1f}/s; first token p95 {before:.1f} s, then {after:.1f} s"
        )
        while sizes[-1] > 1:
            follow(one_engine, system, sizes)
    one_engine.wait_for_ranks("demo", 1, PATIENCE_SECONDS)
    print(f"sizes {sizes}")
    assert load.failures == []
    assert after < before / 2
    turn = sizes.index(3)
    assert (sizes[: turn + 1], sizes[turn:]) == (sorted(sizes[: turn + 1]), sorted(sizes[turn:], reverse=True))


def follow(namespace: Namespace, system: Namespace, sizes: list[int]) -> None:
    """Wait for another size, and kill the operator as soon as it is written."""
    namespace.until(
        "statefulset/demo-engine",
        lambda seen: seen["demo-engine"]["spec"]["replicas"] != sizes[-1],
        PATIENCE_SECONDS,
    )
    sizes.append(namespace.get("statefulset/demo-engine")["spec"]["replicas"])
    selector = "app.kubernetes.io/name=kvasir-operator"
    system.kubectl("delete", "pods", "--selector", selector, "--force", "--grace-period=0", "--wait=false")


def ready(seen: Mapping[str, Object]) -> int:
    return int(seen["demo"]["status"]["engines"]["ready"])


def capacity(url: str) -> float:
    """Return the requests per second of one engine, whose rows are all in use."""

    async def measured() -> float:
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            body = {**BODY, "stream": False}

            async def ask() -> None:
                for _ in range(MEASURED // ROWS):
                    (await client.post(f"{url}/v1/completions", json=body)).raise_for_status()

            began = time.monotonic()
            await asyncio.gather(*(ask() for _ in range(ROWS)))
            return MEASURED / (time.monotonic() - began)

    return asyncio.run(measured())
