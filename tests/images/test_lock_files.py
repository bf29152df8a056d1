"""The locks agree with pyproject.toml: `make locks` after a change of its requirements."""

import re

import pytest
from packaging.requirements import Requirement

from images import lock_files
from images.build_steps import ROOT

IMAGES = (*lock_files.EXTRAS, "engine-cpu")


def lock(image: str) -> dict[str, str]:
    return lock_files.packages((lock_files.LOCKS / f"{image}.txt").read_text())


def wanted(image: str) -> list[Requirement]:
    return [
        Requirement(line) for line in lock_files.requirements(ROOT / "pyproject.toml", lock_files.EXTRAS[image])
    ]


@pytest.mark.parametrize("image", lock_files.EXTRAS)
def test_a_lock_has_a_version_for_each_requirement(image: str) -> None:
    found = lock(image)
    for requirement in wanted(image):
        versions = re.findall(r"^[^=\s]+==(\S+)", found.get(requirement.name.lower(), ""), re.MULTILINE)
        assert versions, f"{requirement} is not locked: run `make locks`"
        allowed = all(requirement.specifier.contains(version) for version in versions)
        assert allowed, f"{requirement} does not allow {versions}: run `make locks`"


@pytest.mark.parametrize("image", IMAGES)
def test_each_version_of_a_lock_has_hashes(image: str) -> None:
    for name, lines in lock(image).items():
        for block in re.split(r"^(?=[a-z0-9])", lines, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block, name


def test_the_engines_torch_is_the_measured_version() -> None:
    assert lock("engine")["torch"].startswith("torch==2.11.0 ")


@pytest.mark.parametrize("image", ["operator", "frontend", "engine-cpu"])
def test_only_the_engine_for_gpus_locks_torch(image: str) -> None:
    names = lock(image).keys()
    assert not [name for name in names if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-"))]


def test_the_engine_for_cpus_has_the_engines_other_packages() -> None:
    """The written file is the one that the engine's lock gives."""
    text = (lock_files.LOCKS / "engine.txt").read_text()
    assert lock_files.without_torch(text) == (lock_files.LOCKS / "engine-cpu.txt").read_text()


def test_the_frontend_image_can_send_traces_and_read_buckets() -> None:
    names = {"starlette", "obstore", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}
    assert names <= lock("frontend").keys()


def test_uv_gets_the_index_and_certificates_of_pip() -> None:
    settings = {"index-url": "https://index.example/simple", "cert": "/ca.pem", "timeout": "9"}
    expected = {"UV_DEFAULT_INDEX": "https://index.example/simple", "SSL_CERT_FILE": "/ca.pem"}
    assert lock_files.uv_settings(settings) == expected
