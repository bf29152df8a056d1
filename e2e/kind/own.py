"""A cluster that is built on this machine from nothing, as root: source 3 of the package's docstring.

kind creates the cluster. The node image and the docker engine are our own.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from e2e.kind import cache, engine, kind_cluster, traces
from e2e.kind.build import binaries, debian, node_image, rootfs
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress

NODE_STEPS = 3
STEPS = NODE_STEPS + 4
_COLD_GB, _WARM_GB = 16, 5
_API_PORT = 6443


def is_up() -> bool:
    return engine.alive() and traces.recall().get("up") is True


def has_traces() -> bool:
    """Return whether our cluster is running, or an earlier one left something behind."""
    return bool(traces.leftovers())


def existing() -> KindCluster:
    return _cluster()


def up(progress: Progress) -> KindCluster:
    """Build and start a cluster with three Ready nodes, using the cache. Nothing is left if that fails."""
    debian.require_root()
    archive, programs = node(progress)
    if remaining := engine.stop():  # of a run that was killed before it could clean up
        raise KindError("Cannot remove an earlier cluster:  " + "; ".join(remaining))
    try:
        with progress.step("docker engine") as log:
            engine.start(log)
            docker = engine.docker(log)
            _link_tools({"kubectl": programs["kubectl"], "kind": programs["kind"], "docker": docker})
        with progress.step("load node image") as log:
            log.run(docker, "load", "--quiet", "--input", archive, env=engine.environment())
        cluster = _cluster()
        with progress.step("cluster of three nodes") as log:
            cluster.create(log, node_image.NAME, kind_cluster.config(engine.address(), _API_PORT))
        with progress.step("all pods ready") as log:
            cluster.wait_for_system(log)
        traces.remember(up=True)
    except BaseException as failure:
        try:
            down()
        except KindError as residue:
            failure.add_note(str(residue))
        raise
    return cluster


def node(progress: Progress) -> tuple[Path, dict[str, Path]]:
    """Return the archive of the node image, and all programs. They can be built before a cluster is needed."""
    cold = not node_image.cached()
    cache.require_space(*((_COLD_GB, "building a cluster from nothing") if cold else (_WARM_GB, "a cluster")))
    with progress.step("binaries") as log:
        programs = binaries.make(log, *binaries.CLUSTER)
    archive = node_image.cached()
    with progress.step("root file system") as log:
        system = rootfs.make(log) if archive is None else None
    with progress.step("node image") as log:
        if system is not None:
            archive = node_image.make(log, system, programs)
    assert archive is not None
    return archive, programs


def down() -> None:
    """Remove everything. Raises KindError with the things that remain."""
    with _uninterrupted():
        remaining = engine.stop()
        cache.kubeconfig().unlink(missing_ok=True)
    if remaining:
        raise KindError("Cannot remove these: " + "; ".join(remaining))


def _cluster() -> KindCluster:
    return KindCluster(cache.kubeconfig(), _tools(), engine.environment(), "buildah")


def _tools() -> Path:
    return cache.folder() / "bin"


def _link_tools(programs: Mapping[str, Path]) -> None:
    """Link all programs into one folder for PATH, because each lies in the folder of its own hash."""
    _tools().mkdir(exist_ok=True)
    for name, program in programs.items():
        (_tools() / name).unlink(missing_ok=True)
        (_tools() / name).symlink_to(program)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C during the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
