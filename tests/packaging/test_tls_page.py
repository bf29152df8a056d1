"""The manifests of docs/tls.md are accepted, and reach the objects that they are about."""

import re
from pathlib import Path
from typing import Any

import yaml

from kvasir.cli import frontend
from kvasir.local.manifests.manifest import read_manifest
from kvasir_operator.resources.names import selector_labels
from kvasir_operator.resources.network import http_service, url

PAGE = Path(__file__).parents[2] / "docs" / "tls.md"
TEXTS = {
    yaml.safe_load(text)["kind"]: text
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}
MANIFESTS: dict[str, dict[str, Any]] = {kind: yaml.safe_load(text) for kind, text in TEXTS.items()}


def test_the_service_is_accepted_and_its_frontends_speak_tls(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(TEXTS["InferenceService"])
    (service,) = read_manifest(path).services
    args = frontend.parser().parse_args(["demo://", *service.frontend.extra_args])
    config = frontend.config_of(args)
    assert config.tls.ssl_certfile == "/tls/tls.crt"
    assert config.tls.enable_ssl_refresh
    assert f"`{url(service).replace('default', 'NAMESPACE')}`" in PAGE.read_text()


def test_the_added_service_reaches_the_frontends(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(TEXTS["InferenceService"])
    (service,) = read_manifest(path).services
    added = MANIFESTS["Service"]["spec"]
    assert added["selector"].items() <= selector_labels(service, "frontend").items()
    of_operator = http_service(service)
    assert added["ports"][0]["targetPort"] == of_operator["spec"]["ports"][0]["targetPort"]
