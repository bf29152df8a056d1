"""Manifests for `kvasir-operator plan`."""

from pathlib import Path
from typing import Any

import yaml

from kvasir_operator.cluster.kinds import INFERENCE_SERVICE


def document(name: str = "demo", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": {"source": "demo://"}, **spec},
    }


def manifest(folder: Path, *documents: Any) -> Path:
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file
