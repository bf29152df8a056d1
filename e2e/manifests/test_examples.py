"""Every example of manifests/ in a strict dry run, with all objects that the operator makes of it."""

import shutil
from pathlib import Path

import pytest
import yaml

from e2e.kind import cache
from e2e.kind.apiserver import ApiServer
from e2e.kind.build.binaries import gateway_api_crds, inference_pool_crd
from e2e.kind.progress import Log
from e2e.manifests.conftest import ROOT, Object, made_of
from e2e.manifests.test_dry_run import AS_OPERATOR, accept
from kvasir_contract.api import KIND

EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def server_with_gateways(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    folder = tmp_path_factory.mktemp("definitions")
    log = Log(cache.logs() / "gateway-api.log")
    for file in [*gateway_api_crds(log), inference_pool_crd(log)]:
        shutil.copy(file, folder)
    server.kubectl("apply", "--server-side", "--filename", str(folder))
    for name in ("httproutes.gateway.networking.k8s.io", "inferencepools.inference.networking.k8s.io"):
        server.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    return server


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_and_its_objects_are_accepted(server_with_gateways: ApiServer, example: Path) -> None:
    documents: list[Object] = list(yaml.safe_load_all(example.read_text()))
    accept(server_with_gateways, documents)
    for document in documents:
        if document["kind"] == KIND:
            accept(server_with_gateways, made_of(document), *AS_OPERATOR)
