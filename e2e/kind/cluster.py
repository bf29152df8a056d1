"""What the end-to-end tests hold: a cluster, wherever it comes from. See the package's docstring for the order."""

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
"""The tests use a cluster that they have not made only if this variable is "yes"."""


class Cluster(Protocol):
    """A cluster that this machine reaches by `kubeconfig`, without entering any namespace."""

    kubeconfig: Path
    tools: Path | None
    """A folder with the kubectl that belongs to it; None: the one in PATH serves."""
    can_load: bool
    """Whether `load_image`, `stop_node` and `start_node` work: not on a cluster that was given."""

    def environment(self) -> dict[str, str]: ...

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str: ...

    def nodes(self) -> list[str]: ...

    def load_image(
        self, source: str | Path, nodes: Sequence[str] | None = None, name: str | None = None
    ) -> str: ...

    def stop_node(self, node: str) -> None: ...

    def start_node(self, node: str) -> None: ...


class GivenCluster:
    """The cluster of KUBECONFIG: ours to use, not to make, to load or to break."""

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
            f"{source} cannot be loaded into the cluster of KUBECONFIG: push it to a registry that it pulls from"
        )

    def stop_node(self, node: str) -> None:
        raise KindError("nodes of the cluster of KUBECONFIG are not stopped by tests")

    def start_node(self, node: str) -> None:
        raise KindError("nodes of the cluster of KUBECONFIG are not started by tests")


@contextlib.contextmanager
def cluster(out: IO[str] | None = None) -> Iterator[Cluster]:
    """A cluster for a run of tests: one that is up already (`make cluster`) is used and left up; else one is made
    here and taken down at the end, also after a failure or Ctrl-C. KindError if KUBECONFIG names one and there is
    no consent to use it."""
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
    """KindError if KUBECONFIG names a cluster of the user's and nothing says that the tests may change it."""
    given = _given()
    if given is not None and os.environ.get(CONSENT) != "yes":
        raise KindError(
            "KUBECONFIG names a cluster that was not made for these tests:\n"
            f"  kubeconfig  {given.kubeconfig}\n"
            f"  context     {_configured('{.current-context}')}\n"
            f"  server      {_configured('{.clusters[0].cluster.server}')}\n"
            "They would install Kvasir there by `kubectl apply -k manifests/`: the CustomResourceDefinition of\n"
            "InferenceServices, ClusterRoles, and the namespace kvasir-system with the operator. They would make\n"
            "namespaces named test-* and kind-* with services in them, and set the capacity of a node.\n"
            f"Set {CONSENT}=yes if that cluster is meant for it, or unset KUBECONFIG to have a cluster made."
        )


def current() -> Cluster | None:
    """The cluster that is there: that of KUBECONFIG, or the one that was made before."""
    return _given() or _made()


def up(out: IO[str] | None = None) -> Cluster:
    """Make a cluster the shortest way that this machine allows, and leave it up."""
    with _alone():
        return _made() or _make(out or sys.stdout)


def down() -> None:
    """Take down what `up` made; nothing happens when there is nothing."""
    with _alone():
        _remove()


def exports(running: Cluster) -> str:
    """The line for a shell after which `kubectl` speaks to this cluster."""
    settings = [f"KUBECONFIG={running.kubeconfig}"]
    if running.tools is not None:
        settings.append(f"PATH={running.tools}:$PATH")
    if proxy := running.environment().get("NO_PROXY"):
        settings.append(f"NO_PROXY={proxy}")
    return f"export {' '.join(settings)}"


def _given() -> Cluster | None:
    given = os.environ.get("KUBECONFIG")
    # Our own, as `make cluster` tells to export it, is not somebody else's.
    return GivenCluster(Path(given)) if given and Path(given) != cache.kubeconfig() else None


def _configured(path: str) -> str:
    """A field of the kubeconfig's current context."""
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
    """A machine has one cluster at a time, and one run that makes, uses or removes it."""
    cache.folder().mkdir(parents=True, exist_ok=True)
    with (cache.folder() / ".cluster.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KindError(
                "Another run makes, uses or removes this machine's cluster now; wait until it ends."
            ) from None
        yield
