"""Writes image archives without docker: an OCI layout in a tar, and the older format that `docker load` reads."""

import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A layer as a blob: its stored digest and size, and the digest of the tar in it (`diff_id`)."""

    digest: str
    size: int
    diff_id: str
    compressed: bool = True

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": _LAYER + "+gzip" * self.compressed, "digest": self.digest, "size": self.size}


class Archive:
    """An OCI layout that is written to a stream blob by blob. Several names may share blobs."""

    def __init__(self, out: IO[bytes] | io.RawIOBase) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 (closed by close)
        self._written: set[str] = set()
        self._index: list[dict[str, Any]] = []

    def add_blob(self, content: bytes) -> str:
        digest = sha256(content)
        self.copy_blob(digest, len(content), io.BytesIO(content))
        return digest

    def copy_blob(self, digest: str, size: int, content: IO[bytes]) -> None:
        if digest not in self._written:
            self._written.add(digest)
            self._put(f"blobs/sha256/{digest.removeprefix('sha256:')}", size, content)

    def add_image(self, name: str, config: bytes, layers: list[Layer]) -> None:
        """Add a named image. The blobs of its layers are added separately, or the reader already has them."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": self.add_blob(config), "size": len(config)},
            "layers": [layer.descriptor for layer in layers],
        }
        content = json.dumps(manifest).encode()
        self._index.append(
            {
                "mediaType": _MANIFEST,
                "digest": self.add_blob(content),
                "size": len(content),
                "annotations": {"io.containerd.image.name": name},
            }
        )

    def close(self) -> None:
        for name, document in (
            ("index.json", {"schemaVersion": 2, "manifests": self._index}),
            ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
        ):
            content = json.dumps(document).encode()
            self._put(name, len(content), io.BytesIO(content))
        self._tar.close()

    def _put(self, name: str, size: int, content: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size = size
        self._tar.addfile(member, content)


def layer_of(add: Callable[[tarfile.TarFile], None]) -> tuple[Layer, bytes]:
    """Return a compressed layer with the tar members that `add` writes. It must fit into memory."""
    out = _Compressor()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        add(tar)
    content = out.finish()
    return Layer(sha256(content), len(content), f"sha256:{out.plain.hexdigest()}"), content


def config(architecture: str, layers: list[Layer], **settings: Any) -> bytes:
    """Return an image's configuration. `settings` are those of its container, such as Entrypoint."""
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": [PATH], **settings},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }
    return json.dumps(document).encode()


def write_docker_archive(path: Path, name: str, configuration: bytes, layer: Path) -> None:
    """Write an image of one layer in the format that `docker load` reads."""
    config_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [layer.name]}]
    with tarfile.open(path, "w") as tar:
        for member, content in ((config_name, configuration), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        tar.add(layer, layer.name)


def chain_ids(diff_ids: list[str]) -> list[str]:
    """Return the names of unpacked layers in containerd. Each covers all layers below it (OCI's ChainID)."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(sha256(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Compressor(io.RawIOBase):
    """A stream that compresses its input and computes the input's digest."""

    def __init__(self) -> None:
        self.plain = hashlib.sha256()
        self._deflate = zlib.compressobj(1, wbits=31)
        self._out = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.plain.update(content)
        self._out += self._deflate.compress(content)
        return len(content)

    def finish(self) -> bytes:
        self._out += self._deflate.flush()
        return bytes(self._out)
