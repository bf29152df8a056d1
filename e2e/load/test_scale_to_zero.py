"""A service without requests has no engines, and the requests that come then are all answered, ten times alike."""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest
import yaml

from e2e.in_cluster import Namespace, Object, restricted_namespace
from e2e.installed import DEMO
from e2e.kind.cluster import Cluster
from kvasir_contract.endpoints import LINK_PORT

CYCLES = 10
REQUESTS = 50
TO_ZERO_AFTER = "5s"
PATIENCE_SECONDS = 180
SLOWER = 3.0
"""The last cycle may take so many times as long as the median: the machine has other work."""
FRONTEND_PORT = 8000
READY_LINE = re.compile(r"^(?P<time>\S+Z) .*\bReady after ", re.MULTILINE)
BODY = {"model": "demo", "prompt": "A pod is", "max_tokens": 8, "temperature": 0}
HIDE = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "hide"},
    "spec": {
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "frontend"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": FRONTEND_PORT}, {"port": LINK_PORT}]}],
    },
}
"""Denies connections to the ops port of frontends. Those of the kubelet are always allowed."""


@pytest.fixture(scope="module")
def zero(installed: Cluster) -> Iterator[Namespace]:
    """The namespace of a demo service with one engine and two frontends that goes to zero."""
    manifest = yaml.safe_load(DEMO.read_text())
    # Answers in float32 do not depend on the other requests of a step.
    manifest["spec"]["engine"] |= {"dataParallelSize": 1, "dtype": "float32"}
    manifest["spec"]["frontend"] = {**manifest["spec"].get("frontend", {}), "replicas": 2}
    manifest["spec"]["autoscaling"] = {"minRanks": 0, "maxRanks": 1, "toZeroAfter": TO_ZERO_AFTER}
    with restricted_namespace(installed) as namespace:
        namespace.apply(manifest)
        until_reason(namespace, "ScaledToZero")
        yield namespace


def test_requests_at_zero_are_all_answered_ten_times(zero: Namespace) -> None:
    seconds = []
    with frontends(zero) as urls:
        for cycle in range(CYCLES):
            until_reason(zero, "ScaledToZero")
            began = time.monotonic()
            with ThreadPoolExecutor(REQUESTS) as pool:
                answers = list(pool.map(ask_timed, [urls[number % 2] for number in range(REQUESTS)]))
            seconds.append(time.monotonic() - began)
            first = min(at for _, at in answers) - engine_ready(zero)
            print(
                f"cycle {cycle}: {REQUESTS} requests answered in {seconds[-1]:.1f} s, "
                f"the first {first * 1000:.0f} ms after the engine was Ready"
            )
            assert len({text for text, _ in answers}) == 1
    assert seconds[-1] < SLOWER * sorted(seconds)[CYCLES // 2], seconds


def test_a_policy_that_hides_frontends_at_zero_starts_engines(zero: Namespace) -> None:
    """The service's own policy would allow the operator, so it is off."""
    until_reason(zero, "ScaledToZero")
    zero.kubectl("patch", "kvs/demo", "--type=merge", "--patch", '{"spec": {"network": {"policy": false}}}')
    zero.wait("networkpolicy/demo-frontend", "delete")
    zero.apply(HIDE)
    try:
        with frontends(zero) as urls:
            assert ask(urls[0])
        until_reason(zero, "FrontendsUnreachable")
        assert "port 8081" in ready(zero.get("kvs/demo"))["message"]
    finally:
        zero.kubectl("delete", "networkpolicy", "hide")
    until_reason(zero, "ScaledToZero")
    zero.kubectl("patch", "kvs/demo", "--type=merge", "--patch", '{"spec": {"network": {"policy": true}}}')
    zero.until("networkpolicies", lambda seen: "demo-frontend" in seen, PATIENCE_SECONDS)
    until_reason(zero, "ScaledToZero")


def test_a_frontend_that_starts_at_zero_gets_requests(zero: Namespace) -> None:
    until_reason(zero, "ScaledToZero")
    names = frontend_names(zero)
    zero.kubectl("delete", *(f"pod/{name}" for name in names))

    def replaced(seen: Mapping[str, Object]) -> bool:
        status = seen["demo-frontend"].get("status", {})
        return status.get("readyReplicas") == 2 and not set(frontend_names(zero)) & set(names)

    zero.until("deployment/demo-frontend", replaced, PATIENCE_SECONDS)
    assert zero.get("statefulset/demo-engine")["spec"]["replicas"] == 0
    with frontends(zero) as urls:
        assert ask(urls[0])


def test_the_service_stays_ready_from_zero_to_an_answer(zero: Namespace) -> None:
    until_reason(zero, "ScaledToZero")
    with frontends(zero) as urls, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, urls[0])
        statuses = []

        def answered(seen: Mapping[str, Object]) -> bool:
            statuses.append(ready(seen["demo"])["status"])
            return bool(seen["demo"]["status"]["engines"]["ready"] == 1)

        zero.until("kvs/demo", answered, PATIENCE_SECONDS)
        assert answer.result(PATIENCE_SECONDS)
    assert set(statuses) == {"True"}


def until_reason(namespace: Namespace, reason: str) -> None:
    def has_it(seen: Mapping[str, Object]) -> bool:
        return ready(seen["demo"]).get("reason") == reason

    namespace.until("kvs/demo", has_it, PATIENCE_SECONDS)


def ready(resource: Object) -> Object:
    conditions: list[Object] = resource.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == "Ready"), {})


def frontend_names(namespace: Namespace) -> list[str]:
    selector = "app.kubernetes.io/instance=demo,app.kubernetes.io/component=frontend"
    found = namespace.get("pods", "--selector", selector)["items"]
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


@contextlib.contextmanager
def frontends(namespace: Namespace) -> Iterator[list[str]]:
    """Yield the URL of each frontend: the Service's port would be forwarded to one of them only."""
    with contextlib.ExitStack() as stack:
        names = frontend_names(namespace)
        yield [stack.enter_context(namespace.forwarded(f"pod/{name}", FRONTEND_PORT)) for name in names]


def engine_ready(namespace: Namespace) -> float:
    """Return the Unix time at which the engine logged that it is Ready, by the clock of its node.

    A figure from it is exact only if this machine is the node, as with kind, or their clocks agree. The log is read
    after the answers: the engine has had no time yet to be idle for TO_ZERO_AFTER.
    """
    ready_line = READY_LINE.search(namespace.kubectl("logs", "pod/demo-engine-0"))
    assert ready_line is not None
    return datetime.fromisoformat(ready_line["time"]).timestamp()


def ask_timed(url: str) -> tuple[str, float]:
    """Return the answer and the Unix time at which it was complete."""
    return ask(url), time.time()


def ask(url: str) -> str:
    response = httpx.post(f"{url}/v1/completions", json=BODY, timeout=PATIENCE_SECONDS)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])
