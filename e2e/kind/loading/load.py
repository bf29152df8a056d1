"""Loads an image archive into nodes without a registry, and transfers only the layers that they lack.

A node finds unpacked layers by chain id, so the archive that it receives may omit the blobs of layers that it has.
The image is streamed into all nodes at once. A node drops the blobs of layers after unpacking them. `link` loads
images of buildah's.
"""

import contextlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from e2e.kind.build import oci
from e2e.kind.progress import KindError

CTR = ("ctr", "--namespace", "k8s.io")


@dataclass(frozen=True)
class Node:
    """A node, and the command prefix that runs commands in it: `docker exec -i <name>`."""

    name: str
    enter: tuple[str, ...]

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise KindError(f"{self.name}: {' '.join(command)[:200]}: {done.stderr.strip()}")
        return done.stdout

    def unpacked(self) -> set[str]:
        """Return the chain ids of the layers that this node has."""
        rows = [row.split() for row in self.run(*CTR, "snapshots", "ls").splitlines()[1:]]
        return {row[0] for row in rows if row[-1] == "Committed"}


@dataclass(frozen=True)
class _Image:
    name: str
    diff_ids: list[str]
    layers: dict[str, str]
    """The diff_id of each layer, by its archive member."""


def load(source: Path, nodes: Sequence[Node], name: str | None = None) -> str:
    """Load an archive in docker's format. Return the image's name in the nodes."""
    image = _describe(source)
    chain = oci.chain_ids(image.diff_ids)
    missing: set[str] = set()
    for node in nodes:
        unpacked = node.unpacked()
        missing |= {diff_id for diff_id, link in zip(image.diff_ids, chain, strict=True) if link not in unpacked}
    with source.open("rb") as stream, importing(nodes) as out:
        _copy(stream, oci.Archive(out), image, missing, name or image.name)
    for node in nodes:
        if missing:
            node.run(*CTR, "content", "rm", *sorted(missing))
    return name or image.name


def _copy(stream: IO[bytes], out: oci.Archive, image: _Image, missing: set[str], name: str) -> None:
    """Convert from docker's format to OCI's, without the layers that all nodes have."""
    layers: dict[str, oci.Layer] = {}
    documents: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.isfile():
                continue
            content = archive.extractfile(member)
            assert content is not None
            diff_id = image.layers.get(member.name)
            if diff_id is not None:
                layers[diff_id] = oci.Layer(diff_id, member.size, diff_id, compressed=False)
                if diff_id in missing:
                    out.copy_blob(diff_id, member.size, content)
            elif member.size < 1 << 20:  # the configuration is one of these
                documents[member.name] = content.read()
    (entry,) = json.loads(documents["manifest.json"])
    out.add_image(name, documents[entry["Config"]], [layers[diff_id] for diff_id in image.diff_ids])
    out.close()


def _describe(source: Path) -> _Image:
    with tarfile.open(source) as archive:
        entries = json.load(_member(archive, "manifest.json"))
        if len(entries) != 1:
            raise KindError(f"{source} contains {len(entries)} images; expected one")
        (entry,) = entries
        diff_ids = json.load(_member(archive, entry["Config"]))["rootfs"]["diff_ids"]
    names = entry.get("RepoTags") or [source.stem]
    return _Image(full_name(names[0]), diff_ids, dict(zip(entry["Layers"], diff_ids, strict=True)))


@contextlib.contextmanager
def importing(nodes: Sequence[Node]) -> Iterator["_Tee"]:
    """Yield a stream into an import on each node. All imports have succeeded at the end of the block."""
    pipe = subprocess.PIPE
    imports = [
        subprocess.Popen(
            [*node.enter, *CTR, "images", "import", "-"], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
        )
        for node in nodes
    ]
    try:
        with contextlib.suppress(BrokenPipeError):  # an import that ended early reports its error below
            yield _Tee([process.stdin for process in imports if process.stdin])
        for node, process in zip(nodes, imports, strict=True):
            said, _ = process.communicate()
            if process.returncode:
                raise KindError(f"{node.name} cannot import the image: {said.decode().strip()}")
    finally:
        for process in imports:
            process.kill()
            process.wait()


class _Tee(io.RawIOBase):
    """A stream that writes into several pipes."""

    def __init__(self, pipes: list[IO[bytes]]) -> None:
        self._pipes = pipes

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        for pipe in self._pipes:
            pipe.write(content)
        return len(content)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise KindError(f"{archive.name!r} is not an archive in docker's format: it lacks {name}")
    return file


def full_name(name: str) -> str:
    """Return an image's name in the form that a node uses: app → docker.io/library/app:latest."""
    if ":" not in name.rsplit("/", 1)[-1]:
        name += ":latest"
    first, _, rest = name.partition("/")
    if not rest:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"
