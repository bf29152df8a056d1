"""Brings an image into nodes without a registry, and only the layers that they lack.

Called by `KindCluster.load_image`. A node finds unpacked layers by chain id, so the archive may leave out the blobs
of those it has: a new version of a few files on top of a 6 GB base is a few kB. The image is streamed into all
nodes at once and never lies on the disk as an archive; a node drops the blobs of layers once they are unpacked.
"""

import contextlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from e2e.kind import cache, oci
from e2e.kind.progress import KindError

_CTR = ("ctr", "--namespace", "k8s.io")


@dataclass(frozen=True)
class Node:
    """A node, and the command that runs others in it: `docker exec -i <name>`."""

    name: str
    enter: tuple[str, ...]

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise KindError(f"{self.name}: {' '.join(command)[:200]}: {done.stderr.strip()}")
        return done.stdout

    def unpacked(self) -> set[str]:
        """Chain ids of the layers that this node has."""
        rows = [row.split() for row in self.run(*_CTR, "snapshots", "ls").splitlines()[1:]]
        return {row[0] for row in rows if row[-1] == "Committed"}


@dataclass(frozen=True)
class _Image:
    name: str
    diff_ids: list[str]
    layers: dict[str, str]
    """The archive's member → diff_id of the layer in it."""


def load(source: str | Path, nodes: Sequence[Node], name: str | None = None) -> str:
    """Load an archive of docker's format (a Path), or an image of buildah's (its name); returns its name there."""
    image = _describe(source)
    chain = oci.chain_ids(image.diff_ids)
    missing: set[str] = set()
    for node in nodes:
        unpacked = node.unpacked()
        missing |= {diff_id for diff_id, link in zip(image.diff_ids, chain, strict=True) if link not in unpacked}
    with _open(source) as stream, _importing(nodes) as out:
        _copy(stream, oci.Archive(out), image, missing, name or image.name)
    for node in nodes:
        if missing:
            node.run(*_CTR, "content", "rm", *sorted(missing))
    return name or image.name


def _copy(stream: IO[bytes], out: oci.Archive, image: _Image, missing: set[str], name: str) -> None:
    """Docker's format in, OCI's out, without the layers that nobody misses."""
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
            elif member.size < 1 << 20:  # the configuration is among these
                documents[member.name] = content.read()
    (entry,) = json.loads(documents["manifest.json"])
    out.add_image(name, documents[entry["Config"]], [layers[diff_id] for diff_id in image.diff_ids])
    out.close()


def _describe(source: str | Path) -> _Image:
    if isinstance(source, Path):
        with tarfile.open(source) as archive:
            entries = json.load(_member(archive, "manifest.json"))
            if len(entries) != 1:
                raise KindError(f"{source} holds {len(entries)} images; one is expected")
            (entry,) = entries
            diff_ids = json.load(_member(archive, entry["Config"]))["rootfs"]["diff_ids"]
        names = entry.get("RepoTags") or [source.stem]
        return _Image(_full_name(names[0]), diff_ids, dict(zip(entry["Layers"], diff_ids, strict=True)))
    facts = json.loads(_output("buildah", "inspect", "--type", "image", source))
    diff_ids = facts["OCIv1"]["rootfs"]["diff_ids"]
    # buildah names the members of its archives after the digest of the layer
    return _Image(
        _full_name(source), diff_ids, {f"{diff_id.removeprefix('sha256:')}.tar": diff_id for diff_id in diff_ids}
    )


@contextlib.contextmanager
def _open(source: str | Path) -> Iterator[IO[bytes]]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
        return
    command = ["buildah", "push", "--quiet", "--disable-compression", source, "docker-archive:/dev/stdout"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=_storage()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout
            process.stdout.read()  # the padding at the archive's end
        except BaseException:
            process.kill()
            raise
        errors = process.stderr.read().decode()
    if process.returncode:
        raise KindError(f"buildah cannot read {source}: {errors.strip()}")


@contextlib.contextmanager
def _importing(nodes: Sequence[Node]) -> Iterator["_Tee"]:
    """An import in each node, fed by what is written; all have succeeded when the block is left."""
    pipe = subprocess.PIPE
    imports = [
        subprocess.Popen(
            [*node.enter, *_CTR, "images", "import", "-"], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
        )
        for node in nodes
    ]
    try:
        with contextlib.suppress(BrokenPipeError):  # an import that ended early tells why below
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
    """Writes into several pipes."""

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
        raise KindError(f"{archive.name!r} is no archive of docker's format: it has no {name}")
    return file


def _full_name(name: str) -> str:
    """As a node writes it: app → docker.io/library/app:latest."""
    if ":" not in name.rsplit("/", 1)[-1]:
        name += ":latest"
    first, _, rest = name.partition("/")
    if not rest:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"


def _storage() -> dict[str, str]:
    """The environment in which buildah finds the images that images/build.py makes, unless ours names a storage."""
    settings = cache.folder().parent / "images" / "storage.conf"
    made = {"CONTAINERS_STORAGE_CONF": str(settings)} if settings.exists() else {}
    return {**made, **os.environ}


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=_storage())
    except FileNotFoundError:
        raise KindError(
            f"{command[0]} is not installed; `apt-get install {command[0]}`, or load an archive"
        ) from None
    if done.returncode:
        raise KindError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
