"""What a release installs: install.yaml by kustomize, and the package of the Helm chart.

Both come from manifests/, with the release's images in place of those of the tree.
"""

import gzip
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from images.build_steps import ROOT, BuildError, scratch

_OF_SERVICES: Final = ("operator", "frontend", "engine")


def kubectl() -> str:
    """Return the path of kubectl. Raises BuildError without it."""
    if found := shutil.which("kubectl"):
        return found
    raise BuildError("kubectl is not installed: install it, because it renders install.yaml")


def install_manifest(version: str, registry: str, digests: Mapping[str, str]) -> str:
    """Return the objects of manifests/. Raises BuildError without kubectl."""
    with scratch() as directory:
        for name in ("crds", "manifests"):
            shutil.copytree(ROOT / name, directory / name, symlinks=True)
        kustomization = directory / "manifests/operator/kustomization.yaml"
        fields = yaml.safe_load(kustomization.read_text())
        fields["images"] = [
            {
                "name": f"kvasir-{image}",
                "newName": f"{registry}/kvasir-{image}",
                **({"digest": digests[image]} if image in digests else {"newTag": version}),
            }
            for image in _OF_SERVICES
        ]
        kustomization.write_text(yaml.safe_dump(fields, sort_keys=False))
        command = [kubectl(), "kustomize", str(directory / "manifests")]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BuildError(f"kubectl kustomize: {answer.stderr.strip()}")
    return answer.stdout


def chart_package(version: str, registry: str, digests: Mapping[str, str]) -> bytes:
    """Return the packed chart. Equal inputs give equal bytes."""
    with scratch() as directory:
        chart = directory / "kvasir"
        shutil.copytree(ROOT / "manifests/chart", chart)  # with copies in place of the symbolic links
        _replace(chart / "Chart.yaml", r"^version: .*$", f"version: {version}")
        _replace(chart / "Chart.yaml", r"^appVersion: .*$", f'appVersion: "{version}"')
        _replace(chart / "values.yaml", r'^  registry: ""', f"  registry: {registry}")
        for image in _OF_SERVICES:
            if image in digests:
                named = f"{image}: {{name: kvasir-{image}, digest: "
                _replace(chart / "values.yaml", f'{re.escape(named)}""', named + f'"{digests[image]}"')
        return _packed(chart)


def _replace(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{pattern} must be once in {file.name}"
    file.write_text(changed)


def _packed(chart: Path) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(path for path in chart.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(chart.parent)))
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()
