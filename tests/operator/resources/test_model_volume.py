"""A model on a PersistentVolumeClaim: all pods mount it read-only, and none gets the hub's token for it."""

from typing import Any

import pytest

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.environment import MODEL_DIRECTORY
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

RELEASE = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
SCHEMA = CRDSchema.of_crd()
TOKEN = {"name": "hf", "key": "token"}


def service(**model: Any) -> InferenceService:
    resource = {
        "metadata": {"name": "demo", "uid": "1"},
        "spec": {"model": {"source": "pvc://models/qwen", **model}},
    }
    completed, problems = SCHEMA.complete(resource)
    assert not problems
    return parse_service(completed)


def variables(container: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in container["env"]]


@pytest.mark.parametrize("template", [engine_template, frontend_template])
def test_pods_mount_the_claim_of_the_model_read_only(template: Any) -> None:
    spec = template(service(tokenSecret=TOKEN), RELEASE, "link")["spec"]
    assert {"name": "kvasir-model", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    (container,) = spec["containers"]
    mount = {"name": "kvasir-model", "mountPath": MODEL_DIRECTORY, "readOnly": True}
    assert mount in container["volumeMounts"]
    assert container["args"][1] == "pvc://models/qwen"
    assert "initContainers" not in spec
    assert "HF_TOKEN" not in variables(container)


@pytest.mark.parametrize("template", [engine_template, frontend_template])
def test_adapters_of_a_claims_model_may_need_the_token(template: Any) -> None:
    spec = template(service(tokenSecret=TOKEN, loraAdapters=[]), RELEASE, "link")["spec"]
    assert "HF_TOKEN" in variables(spec["containers"][0])
