"""The images that kubeadm and kind expect in a node, built from our own binaries without a registry.

Most are one static binary. kube-proxy, the pod network, the agent that enforces NetworkPolicies and the helper of
local-path-provisioner share a layer with a shell, iptables and nft, copied from the node's root file system.
"""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.kind.build import binaries, oci
from e2e.kind.progress import Log

_TOOLS = "localhost/kvasir-kind/tools:local"
_OURS = {name: f"localhost/kvasir-kind/{name}:local" for name in ("local-path-provisioner", "policies")}
_WITH_TOOLS = ("kube-proxy", "policies")
"""Programs that run iptables or nft."""
_ENTRYPOINTS = {"coredns": ("coredns", "/coredns"), "pause": ("pause", "/pause")}
"""Binary and path by image. The others are in /usr/local/bin, because kubeadm does not use a path for them."""


def kubeadm_names(log: Log, programs: Mapping[str, Path]) -> dict[str, str]:
    """Return kubeadm's full image names of this version, such as `pause` → registry.k8s.io/pause:3.10.1."""
    version = binaries.kubernetes_version()
    names = log.read(programs["kubeadm"], "config", "images", "list", "--kubernetes-version", version).split()
    return {name.rsplit("/", 1)[-1].split(":")[0]: name for name in names}


def write(log: Log, out: Path, tools: Path, programs: Mapping[str, Path], architecture: str) -> None:
    """Write all images into one OCI archive. inside/cut-tools.sh has filled the folder `tools`."""
    with out.open("wb") as file:
        archive = oci.Archive(file)
        base, content = oci.layer_of(lambda tar: tar.add(tools, "."))
        archive.copy_blob(base.digest, base.size, io.BytesIO(content))
        archive.add_image(_TOOLS, oci.config(architecture, [base]), [base])
        for image, name in [*kubeadm_names(log, programs).items(), *_OURS.items()]:
            program, place = _ENTRYPOINTS.get(image, (image, f"/usr/local/bin/{image}"))
            layer, content = oci.layer_of(_program(programs[program], place))
            archive.copy_blob(layer.digest, layer.size, io.BytesIO(content))
            layers = [base, layer] if image in _WITH_TOOLS else [layer]
            settings = {"Entrypoint": [place]} if image in _ENTRYPOINTS else {}
            archive.add_image(name, oci.config(architecture, layers, **settings), layers)
        archive.close()


def _program(source: Path, place: str) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
        tar.add(source, place.lstrip("/"), filter=_owned_by_root)

    return add


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode, member.mtime = 0o755, 0
    return member
