"""The files of a release name its images, and a release that would be wrong is refused."""

import io
import tarfile
from pathlib import Path

import pytest
import yaml

from images import installation, release
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


def test_without_kubectl_install_yaml_names_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="kubectl is not installed"):
        installation.install_manifest("1.2.3", PLACE, {})
