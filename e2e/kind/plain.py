"""The cluster on a machine with docker, kind and access to a registry: source 2 of the package's docstring.

Nothing is built: kind pulls its node image and creates the same three nodes.
"""

import shutil
import subprocess

from e2e.kind import cache, kind_cluster
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress

STEPS = 2
_IMAGE = "kindest/node:v1.34.0"
"""The Kubernetes minor version of this image is the same as that of `own`."""
_ANSWERS_WITHIN = 20


def is_up() -> bool:
    if not cache.kubeconfig().exists() or shutil.which("docker") is None or not _docker("info"):
        return False
    return kind_cluster.NAME in _kind("get", "clusters").split()


def existing() -> KindCluster:
    return KindCluster(cache.kubeconfig(), None, {}, "docker")


def impossible() -> str | None:
    """Return why this machine cannot run such a cluster, or None if it can. Pulls the node image."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if not _docker("info"):
        return "no docker engine is running"
    if not _docker("image", "inspect", _IMAGE) and not _docker("pull", "--quiet", _IMAGE, seconds=900):
        return f"docker cannot pull {_IMAGE}"
    missing = [name for name in ("kind", "kubectl") if shutil.which(name) is None]
    if missing:
        raise KindError(f"docker works on this machine: install {' and '.join(missing)} to create a cluster.")
    return None


def up(progress: Progress) -> KindCluster:
    cluster = existing()
    try:
        with progress.step("cluster of three nodes") as log:
            cluster.create(log, _IMAGE, kind_cluster.config())
        with progress.step("all pods ready") as log:
            cluster.wait_for_system(log)
    except BaseException:
        down()
        raise
    return cluster


def down() -> None:
    _kind("delete", "cluster", "--name", kind_cluster.NAME, "--kubeconfig", str(cache.kubeconfig()))
    cache.kubeconfig().unlink(missing_ok=True)


def _docker(*arguments: str, seconds: float = _ANSWERS_WITHIN) -> bool:
    try:
        return subprocess.run(["docker", *arguments], capture_output=True, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _kind(*arguments: str) -> str:
    if shutil.which("kind") is None:
        return ""
    done = subprocess.run(["kind", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise KindError(f"kind {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
