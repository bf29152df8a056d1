"""The configuration of an image in buildah's store, and its layers, which are unpacked on the disk.

images/build.py keeps its images in a separate store below the cache. CONTAINERS_STORAGE_CONF selects another one.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.kind import cache
from e2e.kind.build import oci
from e2e.kind.progress import KindError


@dataclass(frozen=True)
class Image:
    config: bytes
    layers: list[oci.Layer]
    """Lowest layer first."""
    folders: dict[str, Path]
    """The unpacked folder of each layer, by diff_id, in the format of overlayfs (with its whiteouts)."""


def find(name: str) -> Image:
    facts = json.loads(_buildah("inspect", "--type", "image", name))
    diff_ids = facts["OCIv1"]["rootfs"]["diff_ids"]
    sizes = [layer["size"] for layer in json.loads(facts["Manifest"])["layers"]]
    return Image(
        config=facts["Config"].encode(),
        layers=[
            oci.Layer(diff_id, size, diff_id, compressed=False)
            for diff_id, size in zip(diff_ids, sizes, strict=True)
        ],
        folders=_folders(),
    )


def _folders() -> dict[str, Path]:
    store = json.loads(_buildah("info"))["store"]
    driver, root = store["GraphDriverName"], Path(store["GraphRoot"])
    if driver != "overlay":
        raise KindError(f"buildah's store in {root} uses the driver {driver}: configure the driver overlay")
    records: list[dict[str, Any]] = json.loads((root / "overlay-layers" / "layers.json").read_bytes())
    return {
        record["diff-digest"]: root / "overlay" / record["id"] / "diff"
        for record in records
        if "diff-digest" in record
    }


def _buildah(*arguments: str) -> str:
    settings = cache.folder().parent / "images" / "storage.conf"
    ours = {"CONTAINERS_STORAGE_CONF": str(settings)} if settings.exists() else {}
    try:
        done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, env={**ours, **os.environ})
    except FileNotFoundError:
        raise KindError("buildah is not installed: run `apt-get install buildah`, or load an archive") from None
    if done.returncode:
        raise KindError(f"buildah {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
