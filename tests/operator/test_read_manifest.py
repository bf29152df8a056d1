from pathlib import Path
from typing import Final

import pytest

from kvasir_operator.preview import PreviewError, read_manifest
from preview_manifests import document, manifest


def test_read_manifest_returns_the_services_among_other_objects(tmp_path: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    file = manifest(tmp_path, document("a"), other, None, [1], document("b"))
    assert [service["metadata"]["name"] for service in read_manifest(file)] == ["a", "b"]


def test_read_manifest_fills_in_the_namespace(tmp_path: Path) -> None:
    without = document()
    del without["metadata"]["namespace"]
    elsewhere = {**document(), "metadata": {"name": "x", "namespace": "prod"}}
    found = read_manifest(manifest(tmp_path, without, elsewhere))
    assert [service["metadata"]["namespace"] for service in found] == ["default", "prod"]


BAD: Final[dict[str, tuple[bytes, str]]] = {
    "not YAML": (b"a: [", "is not valid YAML"),
    "a tab": (b"a:\n\t- b", "is not valid YAML"),
    "not text": (b"\xff\xfe\x00", "is not valid YAML"),
    "a date that is not one": (b"a: 2026-99-99", "is not valid YAML"),
    "nothing": (b"", "contains no InferenceService"),
    "other kinds only": (b"kind: Service\nmetadata: {name: x}", "contains no InferenceService"),
    "a list": (b"[1, 2]", "contains no InferenceService"),
    "no metadata": (b"kind: InferenceService", "has no metadata.name"),
    "metadata without a name": (b"kind: InferenceService\nmetadata: {}", "has no metadata.name"),
    "a name that is a number": (b"kind: InferenceService\nmetadata: {name: 1}", "has no metadata.name"),
    "metadata that is a text": (b"kind: InferenceService\nmetadata: demo", "has no metadata.name"),
}


@pytest.mark.parametrize("case", BAD)
def test_read_manifest_rejects_invalid_manifests(case: str, tmp_path: Path) -> None:
    content, words = BAD[case]
    file = tmp_path / "service.yaml"
    file.write_bytes(content)
    with pytest.raises(PreviewError, match=words) as error:
        read_manifest(file)
    assert str(file) in str(error.value)


def test_read_manifest_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PreviewError, match=r"absent\.yaml cannot be read: No such file or directory"):
        read_manifest(tmp_path / "absent.yaml")
    with pytest.raises(PreviewError, match="cannot be read: Is a directory"):
        read_manifest(tmp_path)
