"""Builds the image of a node, in place of `kindest/node`: Debian, kind's files, Kubernetes, and its pods' images.

The result is an archive for `docker load`.
"""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.kind import cache
from e2e.kind.build import binaries, images, oci, rootfs
from e2e.kind.progress import KindError, Log

NAME = f"localhost/kvasir-kind/node:{binaries.kubernetes_version()}"
_HERE = Path(__file__).parent
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SETTINGS = {
    "Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"],
    "Env": ["container=docker", oci.PATH],
    "StopSignal": "SIGRTMIN+3",  # systemd's "halt"
}


def key() -> str:
    recipe = [_HERE / name for name in ("node_image.py", "images.py", "oci.py", "node", "inside")]
    return cache.digest(rootfs.key(), *(group.key for group in binaries.CLUSTER), *recipe)


def cached() -> Path | None:
    folder = cache.find("node", key())
    return folder / "node.tar" if folder else None


def make(log: Log, system: Path, programs: Mapping[str, Path]) -> Path:
    """Return the archive of the node image, built from the root file system's archive and our binaries."""
    return cache.make("node", key(), lambda out: _build(log, system, programs, out)) / "node.tar"


def _build(log: Log, system: Path, programs: Mapping[str, Path], out: Path) -> None:
    tree = out / "tree"
    tree.mkdir()
    log.run("tar", "-C", tree, "-xpf", system)
    pause = images.kubeadm_names(log, programs)["pause"]
    _fill(log, tree, programs, pause)
    tools = tree / "tools"
    log.run("chroot", tree, "/bin/sh", "-s", "/tools", stdin=(_HERE / "inside/cut-tools.sh").open("rb"))
    images.write(log, out / "images.tar", tools, programs, architecture())
    shutil.rmtree(tools)
    _preload(log, tree, out / "images.tar")
    layer = _pack(log, tree, out / "layer.tar.gz")
    configuration = oci.config(architecture(), [layer], **_SETTINGS)
    oci.write_docker_archive(out / "node.tar", NAME, configuration, out / "layer.tar.gz")
    for path in (out / "images.tar", out / "layer.tar.gz"):
        path.unlink()
    shutil.rmtree(tree)


def architecture() -> str:
    """Return this machine's architecture in the notation of images, such as amd64 or arm64."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _fill(log: Log, tree: Path, programs: Mapping[str, Path], pause: str) -> None:
    """Add kind's files, our files over them, and the programs that run outside of pods."""
    files = binaries.kind_sources(log) / "images/base/files"
    for source in (files, _HERE / "node"):
        log.run("cp", "-rT", "--no-preserve=mode,ownership", source, tree)
    for name in ("kubelet", "kubeadm", "kubectl"):
        shutil.copy(programs[name], tree / "usr/bin" / name)
    (tree / "kind/version").write_text(binaries.kubernetes_version())
    for folder in ("kind", "kind/bin", "usr/local/bin", "usr/local/sbin"):
        (tree / folder).chmod(0o755)
        for path in (tree / folder).iterdir():
            if path.is_file() and folder != "kind":
                path.chmod(0o755)
    script = (_HERE / "inside/configure-node.sh").open("rb")
    log.run("chroot", tree, "/bin/sh", "-s", stdin=script, env={"PAUSE_IMAGE": pause})


def _preload(log: Log, tree: Path, archive: Path) -> None:
    script = tree / "preload.sh"
    shutil.copy(_HERE / "inside/preload-images.sh", script)
    # Separate namespaces end the script's containerd and mounts, however the script ends.
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={tree}/proc")
    with archive.open("rb") as images_in:
        log.run(*alone, "chroot", tree, "/preload.sh", stdin=images_in)
    script.unlink()


def _pack(log: Log, tree: Path, out: Path) -> oci.Layer:
    """Pack the tree as one compressed layer. The digests are computed in the same pass."""
    plain = hashlib.sha256()
    log.write(f"+ tar {tree} | gzip -1 > {out}")
    with (
        out.open("wb") as file,
        subprocess.Popen(["tar", "-C", tree, "--numeric-owner", "-c", "."], stdout=subprocess.PIPE) as tar,
        subprocess.Popen(["gzip", "-1"], stdin=subprocess.PIPE, stdout=file) as gzip,
    ):
        assert tar.stdout is not None
        assert gzip.stdin is not None
        while chunk := tar.stdout.read(1 << 20):
            plain.update(chunk)
            gzip.stdin.write(chunk)
        gzip.stdin.close()
    if tar.returncode or gzip.returncode:
        raise KindError("cannot pack the node's root file system")
    with out.open("rb") as stored:
        packed = hashlib.file_digest(stored, "sha256").hexdigest()
    return oci.Layer(f"sha256:{packed}", out.stat().st_size, f"sha256:{plain.hexdigest()}")
