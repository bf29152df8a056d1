"""Load on a service during a change: every request must succeed."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.in_cluster import Namespace, idle_pod
from e2e.installed import image_of_frontends

_CLIENT = Path(__file__).with_name("requests_client.py")
_POD = "load"


@dataclass
class Load:
    """The result of the requests, which `load` sets at the end of its block."""

    sent: int = 0
    during: int = 0
    """How many of these were sent in the block."""
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    """The first failures, with time, status and error."""

    def __str__(self) -> str:
        described = "\n".join(json.dumps(failure) for failure in self.failures)
        return (
            f"{self.failed} of {self.sent} requests failed; {self.during} were sent during the change\n{described}"
        )


@contextlib.contextmanager
def load(namespace: Namespace, service: str, at_least: int = 20, node: str | None = None) -> Iterator[Load]:
    """Send requests through the Service from before the block until some seconds after it.

    They are sent by a pod, on this node if one is given. Raises AssertionError if a request failed, or if fewer
    than `at_least` were sent in the block.
    """
    _make_pod(namespace, node)
    run = Load()
    command = ("kubectl", "--namespace", namespace.name, "exec", "-i", _POD, "--")
    environment = {**os.environ, **namespace.cluster.environment()}
    with subprocess.Popen(
        [*command, "python", f"/tmp/{_CLIENT.name}", f"http://{service}", service],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", "the load client did not start"
            yield run
            report, _ = process.communicate(timeout=120)  # the end of its input stops the client
        finally:
            process.kill()
    found = json.loads(report)
    run.sent, run.during, run.failed = found["sent"], found["during"], found["failed"]
    run.failures = found["failures"]
    print(run)
    assert run.failed == 0, f"{run}\n{namespace.picture()}\n{run}"  # twice: long messages are cut at either end
    assert run.during >= at_least, f"only {run.during} requests were sent during the change"


def _make_pod(namespace: Namespace, node: str | None) -> None:
    """Create the pod with the client. A pod on another node is replaced."""
    pod = idle_pod(_POD, image_of_frontends(namespace.cluster))
    if node is not None:
        pod["spec"]["nodeName"] = node
    there = namespace.kubectl("get", "pod", _POD, "--ignore-not-found", "--output", "jsonpath={.spec.nodeName}")
    if there and node not in (None, there):
        namespace.kubectl("delete", "pod", _POD)
        there = ""
    if not there:
        namespace.apply(pod)
    namespace.wait(f"pod/{_POD}", "condition=Ready")
    namespace.kubectl("cp", str(_CLIENT), f"{_POD}:/tmp/{_CLIENT.name}")
