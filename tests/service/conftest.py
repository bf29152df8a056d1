"""One service of two ranks for all tests that only use it."""

from collections.abc import Iterator

import pytest
import yaml

from service.running import ROOT, Service, running

ADMIN_KEY = "an-admin-key"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo on two ranks, by the manifest of the README with an admin key, on any free port."""
    resource = yaml.safe_load((ROOT / "manifests/examples/demo.yaml").read_text())
    resource["spec"]["frontend"] = {"adminApiKeys": {"name": "admins"}}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "admins"},
        "stringData": {"key": ADMIN_KEY},
    }
    manifest = tmp_path_factory.mktemp("manifest") / "service.yaml"
    manifest.write_text(yaml.safe_dump_all([resource, secret]))
    with running("up", str(manifest), "--port", "0") as service:
        yield service
