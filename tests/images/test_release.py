"""The files of a release name its images, and a release that would be wrong is refused."""

import io
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from images import build, installation, lock_files, release
from images.build_steps import ROOT, BuildError

DIGEST = f"sha256:{'7' * 64}"
PLACE = "registry.example/kvasir"
VERSION = release.package_version()


def registry(place: str = PLACE) -> release.Registry:
    return release.Registry(place, plain_http=False, builder="buildah")


def files_of(package: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        return {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("version", "place", "words"),
    [
        ("next", PLACE, "'next' is not a version"),
        ("99.0.0", PLACE, f"the code has version {VERSION}, not 99.0.0"),
        (VERSION, "https://registry.example", "is not the place of images"),
    ],
)
def test_a_wrong_release_is_refused_before_it_is_built(version: str, place: str, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        release.check(version, registry(place))


@pytest.mark.parametrize("suffix", ["", "-rc.1"])
def test_a_release_has_the_version_of_the_code(suffix: str) -> None:
    release.check(VERSION + suffix, registry("127.0.0.1:5000/kvasir"))


def test_labels_name_version_revision_and_source() -> None:
    found = release.labels("1.2.3", "https://example.com/kvasir")
    assert found["org.opencontainers.image.version"] == "1.2.3"
    assert found["org.opencontainers.image.source"] == "https://example.com/kvasir"
    assert "org.opencontainers.image.source" not in release.labels("1.2.3", "")


def test_a_chart_names_the_images_of_its_release() -> None:
    package = installation.chart_package("1.2.3", PLACE, {"operator": DIGEST})
    assert package == installation.chart_package("1.2.3", PLACE, {"operator": DIGEST})
    files = files_of(package)
    values = yaml.safe_load(files["kvasir/values.yaml"])["images"]
    assert values["registry"] == PLACE
    assert values["operator"] == {"name": "kvasir-operator", "digest": DIGEST}
    assert values["engine"] == {"name": "kvasir-engine", "digest": ""}
    described = yaml.safe_load(files["kvasir/Chart.yaml"])
    assert (described["version"], described["appVersion"]) == ("1.2.3", "1.2.3")


def test_a_chart_contains_the_objects_of_manifests() -> None:
    files = files_of(installation.chart_package("1.2.3", PLACE, {}))
    for path in ("operator/rbac.yaml", "monitoring/alerts.yaml", "base/user-roles.yaml"):
        assert files[f"kvasir/{path}"] == (ROOT / "manifests" / path).read_text()
    crd = "inferenceservices.serving.kvasir.dev.yaml"
    assert files[f"kvasir/crds-of-kvasir/{crd}"] == (ROOT / "crds" / crd).read_text()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with kubectl, and without settings of images."""
    program = tmp_path / "kubectl"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("BASE_IMAGE", "ENGINE_BASE_IMAGE", "TORCH_CPU_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_release_needs_kubectl_before_it_is_built(machine: pytest.MonkeyPatch) -> None:
    release.check_machine(["operator"], "docker")
    machine.setenv("PATH", "/none")
    with pytest.raises(BuildError, match="kubectl is not installed"):
        release.check_machine(["operator"], "docker")


def test_an_engine_for_gpus_needs_a_base_with_a_compiler(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="set ENGINE_BASE_IMAGE"):
        release.check_machine(["operator", "engine"], "buildah")
    release.check_machine(["operator", "engine-cpu"], "buildah")
    release.check_machine(["engine"], "docker")
    machine.setenv("ENGINE_BASE_IMAGE", "registry.example/python")
    release.check_machine(["engine"], "buildah")


def test_an_engine_for_cpus_needs_an_index_of_torch(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match="TORCH_CPU_INDEX_URL"):
        build.build(["operator", "engine-cpu"], "dev", "buildah")


@pytest.mark.parametrize("place", [PLACE, "docker.io/team", "127.0.0.1:5000"])
def test_a_pushed_image_has_the_digest_of_its_registry(place: str) -> None:
    names = [
        "other.example/kvasir-operator@sha256:0",
        f"{place.removeprefix('docker.io/')}/kvasir-operator@{DIGEST}",
    ]
    assert release.pushed_digest(f"{place}/kvasir-operator:1.2.3", names) == DIGEST
    assert not release.pushed_digest(f"{place}/kvasir-engine:1.2.3", names)


@pytest.mark.parametrize("image", build.TARGETS)
def test_a_bill_of_materials_has_torch_if_the_image_has(image: str) -> None:
    found = re.findall(r"^torch==(\S+)", release.requirements(image), re.MULTILINE)
    assert found == ([lock_files.PINNED["torch"]] if image.startswith("engine") else [])
