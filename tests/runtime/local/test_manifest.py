"""Manifests: the documents that are used, and the messages for mistakes in them."""

import base64
import json
from pathlib import Path

import pytest

from kvasir.local.manifests.manifest import ManifestError, read_manifest

SERVICE = """
apiVersion: serving.kvasir.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec: {model: {source: "demo://"}}
"""


def manifest(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "service.yaml"
    path.write_text(text)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    return str(caught.value)


def test_services_and_secrets_of_all_documents_are_read(tmp_path: Path) -> None:
    token = base64.b64encode(b"s3cret").decode()
    read = read_manifest(
        manifest(
            tmp_path,
            f"---\n{SERVICE}---\n---\n{SERVICE.replace('demo}', 'other}')}---\n"
            f"apiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\n"
            f"data: {{a: {token}}}\nstringData: {{b: plain}}\n",
        )
    )
    assert [service.name for service in read.services] == ["demo", "other"]
    assert read.services[0].model.served_names == ("demo",)
    assert read.secrets == {"keys": {"a": "s3cret", "b": "plain"}}


def test_an_unknown_field_is_named_with_its_place(tmp_path: Path) -> None:
    path = manifest(tmp_path, SERVICE.replace("}}", "}, engine: {maxNumSeq: 8}}"))
    assert error_of(path) == (
        f"{path}: InferenceService demo: spec.engine.maxNumSeq: unknown field; did you mean maxNumSeqs?"
    )


def test_problems_of_all_documents_are_told_a_line_each(tmp_path: Path) -> None:
    broken = SERVICE.replace("demo://", "ftp://")
    lines = error_of(manifest(tmp_path, f"{broken}---\n{broken.replace('demo}', 'other}')}")).splitlines()
    assert lines[0] == "2 problems"
    assert [line.partition(": ")[2].partition(":")[0] for line in lines[1:]] == [
        "InferenceService demo",
        "InferenceService other",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no InferenceService in it"),
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}", "Deployment web: kind: kvasir up runs"),
        ("- a\n- b", "a document is not a Kubernetes object: it has no kind"),
        ("just text", "a document is not a Kubernetes object"),
        (SERVICE.replace("v1alpha1", "v1"), "must be serving.kvasir.dev/v1alpha1, not serving.kvasir.dev/v1"),
        (SERVICE + "---\n" + SERVICE, "InferenceService demo: metadata.name: there is another one of this name"),
        (SERVICE.replace("{name: demo}", "{}"), "InferenceService (without a name): metadata: name is required"),
        (
            SERVICE.replace("metadata: {name: demo}\n", ""),
            "InferenceService (without a name): metadata is required",
        ),
        (SERVICE.replace("spec: {", "spec: ["), "not YAML: line 5"),
        (SERVICE + "kind: InferenceService\n", "not YAML: line 6, column 1: kind is there twice"),
        ("kind: Secret\nmetadata: {name: x}\n1: 2", "not YAML: line 3, column 1: the key 1 is not a string"),
        ("kind: Secret\nmetadata: {name: x}\ndata: {a: '%%'}", "Secret x: data.a: must be text in base64"),
        ("kind: Secret\nmetadata: {name: x}\nstringDate: {a: b}", "unknown field; did you mean stringData?"),
        ("kind: Secret\nmetadata: {name: x}\nstringData: {a: 1}", "Secret x: stringData.a: must be a string"),
        ("kind: Secret\nstringData: {a: b}", "Secret (without a name): metadata: name is required"),
    ],
)
def test_unusable_manifest_is_reported(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(manifest(tmp_path, text))


HOSTILE_KEYS = {
    "../x": "must consist of",
    "/etc/cron.d/x": "must consist of",
    "a/b": "must consist of",
    "a\nb": "must consist of",
    "key\n": "must consist of",
    "schlüssel": "must consist of",
    "": "must consist of",
    **dict.fromkeys((".", "..", "..data"), "must not be '.' and must not start with '..'"),
    "k" * 254: "has 254 characters; at most 253",
}


@pytest.mark.parametrize("key", HOSTILE_KEYS)
@pytest.mark.parametrize("field", ["data", "stringData"])
def test_a_secrets_key_that_the_api_server_rejects(tmp_path: Path, field: str, key: str) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "keys"}, field: {key: "b25l"}}
    message = error_of(manifest(tmp_path, f"{SERVICE}---\n{json.dumps(secret)}"))
    assert f"Secret keys: {field}: the key {key[:100]!r} {HOSTILE_KEYS[key]}" in message


@pytest.mark.parametrize("key", [".hidden", "a.b_c-D9", "a..b", ".a..", "k" * 253])
def test_a_secrets_key_that_the_api_server_accepts(tmp_path: Path, key: str) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {key: "one"}}
    read = read_manifest(manifest(tmp_path, f"{SERVICE}---\n{json.dumps(secret)}"))
    assert read.secrets == {"keys": {key: "one"}}


def test_a_date_is_a_string_as_it_is_for_kubernetes(tmp_path: Path) -> None:
    text = SERVICE.replace('"demo://"', '"demo://", servedNames: [2026-01-31]')
    assert read_manifest(manifest(tmp_path, text)).services[0].model.served_names == ("2026-01-31",)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none.yaml").endswith("none.yaml: No such file or directory")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in error_of(tmp_path / "binary.yaml")
