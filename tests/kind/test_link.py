"""Images of buildah's are loaded into nodes by linking files, without transferring layers."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.kind.build import oci
from e2e.kind.loading import link, load
from e2e.kind.progress import KindError

LAYERS = {"sha256:base": "b1", "sha256:code": "c1"}
"""buildah's name of each layer, by diff_id."""
BUILDAH = """#!/bin/sh
case "$1" in info) cat "{folder}/info" ;; *) cat "{folder}/inspect" ;; esac
"""
CTR = """#!/bin/sh
# A node: $1 is its /var, the rest is the command. Snapshots get ascending numbers.
var=$1; shift 4
snapshots=$var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots
place=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots
case "$1 $2" in
  "snapshots ls") echo KEY PARENT KIND; [ ! -e "$var/committed" ] || sed 's/$/ - Committed/' "$var/committed" ;;
  "snapshots prepare") number=$(ls "$snapshots" | wc -l)
    mkdir -p "$snapshots/$number/fs"; echo "$3 $4" >> "$var/prepared" ;;
  "snapshots mounts") number=$(($(ls "$snapshots" | wc -l) - 1))
    if grep -q "^$4 ." "$var/prepared"
    then echo "mount -t overlay overlay / -o upperdir=$place/$number/fs,lowerdir=$place/0/fs"
    else echo "mount -t bind $place/$number/fs / -o rw,rbind"; fi ;;
  "snapshots commit") echo "$3" >> "$var/committed" ;;
  "images import") cat > "$var/imported.tar" ;;
esac
"""


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """buildah's store, with an image `app:dev` of two layers with one file each."""
    root = tmp_path / "storage"
    for diff_id, name in LAYERS.items():
        folder = root / "overlay" / name / "diff" / "opt"
        folder.mkdir(parents=True)
        (folder / name).write_text(diff_id)
    (root / "overlay-layers").mkdir()
    records = [{"id": name, "diff-digest": diff_id} for diff_id, name in LAYERS.items()]
    (root / "overlay-layers" / "layers.json").write_text(json.dumps(records))
    store = {"GraphDriverName": "overlay", "GraphRoot": str(root)}
    (tmp_path / "info").write_text(json.dumps({"store": store}))
    manifest = json.dumps({"layers": [{"size": 7}, {"size": 11}]})
    facts = {"Config": "{}", "Manifest": manifest, "OCIv1": {"rootfs": {"diff_ids": list(LAYERS)}}}
    (tmp_path / "inspect").write_text(json.dumps(facts))
    program(tmp_path / "bin" / "buildah", BUILDAH.format(folder=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return root


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def a_place(tmp_path: Path) -> link.Place:
    var = tmp_path / "var"
    (var / link._SNAPSHOTS).mkdir(parents=True)
    return link.Place(load.Node("node", (program(tmp_path / "bin" / "enter", CTR), str(var))), var)


def test_a_node_shares_the_files_of_every_layer(storage: Path, tmp_path: Path) -> None:
    place = a_place(tmp_path)
    assert link.link("app:dev", [place]) == "docker.io/library/app:dev"
    for number, name in enumerate(LAYERS.values()):
        linked = place.var / link._SNAPSHOTS / str(number) / "fs" / "opt" / name
        assert linked.samefile(storage / "overlay" / name / "diff" / "opt" / name)
    base, code = oci.chain_ids(list(LAYERS))
    assert (place.var / "committed").read_text().split() == [base, code]
    assert (place.var / "prepared").read_text().splitlines()[1].endswith(base)


def test_only_names_travel(storage: Path, tmp_path: Path) -> None:
    place = a_place(tmp_path)
    link.link("app:dev", [place], "localhost/kvasir/app:dev")
    with tarfile.open(place.var / "imported.tar") as tar:
        contents = {member.name: tar.extractfile(member) or io.BytesIO() for member in tar}
        blobs = {name.rsplit("/", 1)[-1]: content.read() for name, content in contents.items()}
    (named,) = json.loads(blobs["index.json"])["manifests"]
    assert named["annotations"] == {"io.containerd.image.name": "localhost/kvasir/app:dev"}
    layers = json.loads(blobs[named["digest"].removeprefix("sha256:")])["layers"]
    assert [(layer["digest"], layer["size"]) for layer in layers] == [("sha256:base", 7), ("sha256:code", 11)]
    assert not {"base", "code"} & blobs.keys()


def test_a_layer_that_the_node_has_is_not_linked_again(storage: Path, tmp_path: Path) -> None:
    place = a_place(tmp_path)
    link.link("app:dev", [place])
    link.link("app:dev", [place])
    assert len((place.var / "committed").read_text().split()) == len(LAYERS)


def test_a_node_on_another_disk_is_named_with_the_reason(storage: Path, tmp_path: Path) -> None:
    place = a_place(tmp_path)
    program(tmp_path / "bin" / "cp", "#!/bin/sh\necho Invalid cross-device link >&2; exit 1\n")
    with pytest.raises(KindError, match=r"node: cannot link a layer .* Invalid cross-device link"):
        link.link("app:dev", [place])


@pytest.mark.parametrize(("given", "looked_in"), [(None, "images/storage.conf"), ("/mine.conf", "/mine.conf")])
def test_images_are_in_the_build_scripts_store_by_default(
    given: str | None, looked_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "kvasir" / "images" / "storage.conf"
    settings.parent.mkdir(parents=True)
    settings.touch()
    buildah = tmp_path / "buildah"
    buildah.write_text('#!/bin/sh\necho "$CONTAINERS_STORAGE_CONF" >&2; exit 1\n')
    buildah.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CONTAINERS_STORAGE_CONF", raising=False)
    if given is not None:
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", given)
    with pytest.raises(KindError, match=rf"{looked_in}$"):
        link.link("app:dev", [])
