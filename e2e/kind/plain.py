"""The cluster on a machine of a user's: docker and kind are there and a registry is reached. Called by `cluster`.

Nothing is built: kind pulls its node image and makes the same three nodes.
"""

import shutil
import subprocess

from e2e.kind import cache, kind_cluster
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress

STEPS = 2
_IMAGE = "kindest/node:v1.34.0"
"""Kubernetes of the minor version that is built where nothing can be pulled."""
_ANSWERS_WITHIN = 20


def is_up() -> bool:
    if not cache.kubeconfig().exists() or shutil.which("docker") is None or not _docker("info"):
        return False
    return kind_cluster.NAME in _kind("get", "clusters").split()


def existing() -> KindCluster:
    return KindCluster(cache.kubeconfig(), None, {}, "docker")


def impossible() -> str | None:
    """Why this machine cannot do it, in words; None if it can. Pulls the node image."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if not _docker("info"):
        return "no docker engine answers"
    if not _docker("image", "inspect", _IMAGE) and not _docker("pull", "--quiet", _IMAGE, seconds=900):
        return f"docker cannot pull {_IMAGE}"
    missing = [name for name in ("kind", "kubectl") if shutil.which(name) is None]
    if missing:
        raise KindError(f"docker works here, so only {' and '.join(missing)} must be installed for a cluster.")
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
