"""Loads an image of buildah's into nodes whose data is on the same disk, with hard links instead of an archive.

buildah and a node's containerd both keep each layer unpacked in a folder, in the same format. Linking the files of
a large layer needs little time and no disk space. It is safe because layers are never written: the changes of a
container go into a separate folder.
"""

import re
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.kind.build import oci
from e2e.kind.loading import buildah
from e2e.kind.loading.load import CTR, Node, full_name, importing
from e2e.kind.progress import KindError

_SNAPSHOTS = Path("lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots")
"""Below /var of a node."""


@dataclass(frozen=True)
class Place:
    """A node, and the path of its /var on this machine."""

    node: Node
    var: Path


def link(name: str, places: Sequence[Place], new_name: str | None = None) -> str:
    """Load buildah's image of this name into the nodes, as `new_name` if it is given. Return its name there."""
    image = buildah.find(name)
    result = full_name(new_name or name)
    for place in places:
        _link_layers(image, place)
    with importing([place.node for place in places]) as out:
        archive = oci.Archive(out)
        archive.add_image(result, image.config, image.layers)  # only the names of the layers
        archive.close()
    return result


def _link_layers(image: buildah.Image, place: Place) -> None:
    there = place.node.unpacked()
    below = ""
    diff_ids = [layer.diff_id for layer in image.layers]
    for diff_id, chain_id in zip(diff_ids, oci.chain_ids(diff_ids), strict=True):
        if chain_id not in there:
            _link_layer(image.folders[diff_id], place, chain_id, below)
        below = chain_id


def _link_layer(layer: Path, place: Place, chain_id: str, below: str) -> None:
    """Create a snapshot in the node's containerd from the files of the layer, on top of the snapshot `below`."""
    key = f"link-{uuid.uuid4().hex}"
    node, snapshots = place.node, (*CTR, "snapshots")
    node.run(*snapshots, "prepare", key, *([below] if below else []))
    mounts = node.run(*snapshots, "mounts", "/", key)
    # A snapshot without a parent is a bind mount of its folder. Any other is an overlay that writes to its folder.
    folder = re.search(rf"(?:upperdir=|bind )\S*?{re.escape(str(_SNAPSHOTS))}/(\d+)/fs", mounts)
    if folder is None:
        raise KindError(
            f"{node.name}: cannot find the folder of a snapshot in containerd's mounts: {mounts.strip()}"
        )
    target = place.var / _SNAPSHOTS / folder[1] / "fs"
    command = ["cp", "--archive", "--link", f"{layer}/.", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0]
        raise KindError(f"{node.name}: cannot link a layer of buildah's to {target}: {reason}")
    node.run(*snapshots, "commit", chain_id, key)
