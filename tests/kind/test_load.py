import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.kind.build import oci
from e2e.kind.loading import load
from e2e.kind.progress import KindError

CTR = """#!/bin/sh
# A node: the folder `$1` lists its snapshots and receives its imports.
node=$1; shift 4
case "$1 $2" in
  "snapshots ls") cat "$node/snapshots" ;;
  "images import") cat > "$node/imported.tar" ;;
  "content rm") shift 2; echo "$@" > "$node/removed" ;;
esac
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of two layers, `base` and `code`, as `docker save` writes it."""
    path = tmp_path / "image.tar"
    config = {"rootfs": {"diff_ids": [diff_id(b"base"), diff_id(b"code")]}}
    entry = {"Config": "config.json", "RepoTags": ["app"], "Layers": ["1/layer.tar", "2/layer.tar"]}
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("1/layer.tar", b"base"),
            ("2/layer.tar", b"code"),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps([entry]).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def a_node(folder: Path, *has: str) -> load.Node:
    folder.mkdir()
    rows = ["KEY PARENT KIND", *(f"{key} - Committed" for key in has), "running - Active"]
    (folder / "snapshots").write_text("\n".join(rows) + "\n")
    program = folder / "enter"
    program.write_text(CTR)
    program.chmod(0o755)
    return load.Node(folder.name, (str(program), str(folder)))


def test_a_node_that_has_the_base_gets_the_code_alone(archive: Path, tmp_path: Path) -> None:
    node = a_node(tmp_path / "node", diff_id(b"base"))
    assert load.load(archive, [node]) == "docker.io/library/app:latest"
    blobs, manifest = imported(tmp_path / "node")
    assert [layer["digest"] for layer in manifest["layers"]] == [diff_id(b"base"), diff_id(b"code")]
    assert [layer["size"] for layer in manifest["layers"]] == [4, 4]
    assert blobs[diff_id(b"code")] == b"code"
    assert diff_id(b"base") not in blobs
    assert (tmp_path / "node" / "removed").read_text().split() == [diff_id(b"code")]


def test_a_layer_that_any_node_lacks_is_sent(archive: Path, tmp_path: Path) -> None:
    nodes = [a_node(tmp_path / "one", diff_id(b"base")), a_node(tmp_path / "two")]
    load.load(archive, nodes, name="localhost/kvasir/app:dev")
    for name in ("one", "two"):
        assert {diff_id(b"base"), diff_id(b"code")} <= imported(tmp_path / name)[0].keys()


def test_a_layer_is_known_by_all_that_lies_below_it(archive: Path, tmp_path: Path) -> None:
    node = a_node(tmp_path / "node", diff_id(b"base"), diff_id(b"code"))  # the code layer, on another base
    load.load(archive, [node])
    assert diff_id(b"code") in imported(tmp_path / "node")[0]


def test_a_node_that_has_all_gets_the_name_only(archive: Path, tmp_path: Path) -> None:
    node = a_node(tmp_path / "node", *oci.chain_ids([diff_id(b"base"), diff_id(b"code")]))
    load.load(archive, [node])
    assert not {diff_id(b"base"), diff_id(b"code")} & imported(tmp_path / "node")[0].keys()
    assert not (tmp_path / "node" / "removed").exists()


def test_a_node_that_refuses_the_image_is_named_with_its_reason(archive: Path, tmp_path: Path) -> None:
    node = a_node(tmp_path / "node")
    script = Path(node.enter[0])
    script.write_text(CTR.replace('cat > "$node/imported.tar"', "echo no space left; exit 1"))
    with pytest.raises(KindError, match="node cannot import the image: no space left"):
        load.load(archive, [node])


def test_a_file_that_is_not_an_image_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.tar"
    tarfile.open(path, "w").close()
    with pytest.raises(KindError, match=r"manifest\.json"):
        load.load(path, [])


def imported(folder: Path) -> tuple[dict[str, bytes], dict[str, list[dict[str, object]]]]:
    """Return the blobs that a node received, and the image's manifest."""
    blobs: dict[str, bytes] = {}
    with tarfile.open(folder / "imported.tar") as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            blobs[f"sha256:{member.name.rsplit('/', 1)[-1]}"] = content.read()
    index = json.loads(blobs.pop("sha256:index.json"))
    return blobs, json.loads(blobs[index["manifests"][0]["digest"]])


def diff_id(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
