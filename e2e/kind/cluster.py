"""The cluster of the end-to-end tests, whatever its source. The package's docstring lists the sources."""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

from e2e.kind import cache, own, plain
from e2e.kind.progress import KindError, Progress

CONSENT: Final = "KVASIR_E2E_INSTALL"
"""The tests use an existing cluster only if this variable is "yes"."""


class Cluster(Protocol):
    """A cluster that this machine can access with `kubeconfig`, without entering a namespace."""

    kubeconfig: Path
    tools: Path | None
    """A folder with the cluster's kubectl; None for the one in PATH."""
    can_load: bool
    """Whether `load_image`, `stop_node` and `start_node` work. They do not work on the cluster of KUBECONFIG."""

    def environment(self) -> dict[str, str]: ...

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str: ...

    def nodes(self) -> list[str]: ...

    def load_image(
        self, source: str | Path, nodes: Sequence[str] | None = None, name: str | None = None
    ) -> str: ...

    def stop_node(self, node: str) -> None: ...

    def start_node(self, node: str) -> None: ...


class GivenCluster:
    """The cluster of KUBECONFIG. Tests may use it, but they neither create it nor load images nor stop nodes."""

    tools: Path | None = None
    can_load = False

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def environment(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(["kubectl", *arguments], input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise KindError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def nodes(self) -> list[str]:
        return self.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()

    def load_image(self, source: str | Path, nodes: Sequence[str] | None = None, name: str | None = None) -> str:
        raise KindError(
            f"cannot load {source} into the cluster of KUBECONFIG: push it to a registry of that cluster"
        )

    def stop_node(self, node: str) -> None:
        raise KindError("tests do not stop nodes of the cluster of KUBECONFIG")

    def start_node(self, node: str) -> None:
        raise KindError("tests do not start nodes of the cluster of KUBECONFIG")


@contextlib.contextmanager
def cluster(out: IO[str] | None = None) -> Iterator[Cluster]:
    """Yield a cluster for a test run.

    A cluster that is already running (`make cluster`) is used and left running. Otherwise a new one is created, and
    removed at the end, also after a failure or Ctrl-C. Raises KindError if KUBECONFIG names a cluster without
    consent to use it.
    """
    require_consent()
    if given := _given():
        yield given
        return
    with _alone():
        running = _made()
        if running is not None:
            yield running
            return
        made = _make(out or sys.stdout)
        try:
            yield made
        finally:
            _remove()


def require_consent() -> None:
    """Raise KindError if KUBECONFIG names a user's cluster and the user has not allowed the tests to change it."""
    given = _given()
    if given is not None and os.environ.get(CONSENT) != "yes":
        raise KindError(
            "KUBECONFIG names a cluster that was not made for these tests:\n"
            f"  kubeconfig  {given.kubeconfig}\n"
            f"  context     {_configured('{.current-context}')}\n"
            f"  server      {_configured('{.clusters[0].cluster.server}')}\n"
            "The tests would install Kvasir in it by `kubectl apply -k manifests/`: the CustomResourceDefinition\n"
            "of InferenceServices, ClusterRoles, and the namespace kvasir-system with the operator. They would\n"
            "create namespaces named test-* and kind-* with services, and set the capacity of a node.\n"
            f"Set {CONSENT}=yes to allow this, or unset KUBECONFIG to create a new cluster."
        )


def current() -> Cluster | None:
    """Return the current cluster: that of KUBECONFIG, or the one that is already running."""
    return _given() or _made()


def up(out: IO[str] | None = None) -> Cluster:
    """Create a cluster from the first available source, and leave it running."""
    with _alone():
        return _made() or _make(out or sys.stdout)


def down() -> None:
    """Remove the cluster that `up` created, if there is one."""
    with _alone():
        _remove()


def exports(running: Cluster) -> str:
    """Return a shell command after which `kubectl` uses this cluster."""
    settings = [f"KUBECONFIG={running.kubeconfig}"]
    if running.tools is not None:
        settings.append(f"PATH={running.tools}:$PATH")
    if proxy := running.environment().get("NO_PROXY"):
        settings.append(f"NO_PROXY={proxy}")
    return f"export {' '.join(settings)}"


def _given() -> Cluster | None:
    given = os.environ.get("KUBECONFIG")
    # A KUBECONFIG that `make cluster` printed is that of our own cluster.
    return GivenCluster(Path(given)) if given and Path(given) != cache.kubeconfig() else None


def _configured(path: str) -> str:
    """Return a field of the kubeconfig's current context."""
    command = ("kubectl", "config", "view", "--minify", "-o", f"jsonpath={path}")
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown, because kubectl is not installed"
    return done.stdout or f"unknown ({done.stderr.strip()})"


def _made() -> Cluster | None:
    if own.is_up():
        return own.existing()
    return plain.existing() if plain.is_up() else None


def _make(out: IO[str]) -> Cluster:
    reason = plain.impossible()
    if reason is None:
        return plain.up(Progress(plain.STEPS, cache.logs(), out))
    print(f"Building a cluster from packages: {reason}.", file=out, flush=True)
    return own.up(Progress(own.STEPS, cache.logs(), out))


def _remove() -> None:
    if own.has_traces():
        own.down()
    elif plain.is_up():
        plain.down()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Ensure that one run at a time creates, uses or removes this machine's only cluster."""
    cache.folder().mkdir(parents=True, exist_ok=True)
    with (cache.folder() / ".cluster.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KindError("Another run is using this machine's cluster. Try again when it has ended.") from None
        yield
