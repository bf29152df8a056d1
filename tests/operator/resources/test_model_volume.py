"""A model on a PersistentVolumeClaim of the user or of a cache: all pods mount it read-only, without the token."""

from typing import Any, Final

import pytest

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.environment import MODEL_DIRECTORY
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.model_cache import cache_claim, cache_job
from kvasir_operator.resources.names import FILLED_ANNOTATION
from kvasir_operator.resources.pinning import inputs
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

RELEASE = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
SCHEMA = CRDSchema.of_crd()
TOKEN = {"name": "hf", "key": "token"}


def service(engine: dict[str, Any] | None = None, **model: Any) -> InferenceService:
    spec = {"model": {"source": "pvc://models/qwen", **model}, "engine": engine or {}}
    resource = {"metadata": {"name": "demo", "uid": "1"}, "spec": spec}
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


CACHED: Final[dict[str, Any]] = {"source": "hf://org/name", "tokenSecret": TOKEN, "cache": {"size": "40Gi"}}


@pytest.mark.parametrize("template", [engine_template, frontend_template])
def test_pods_read_the_directory_that_the_job_fills(template: Any) -> None:
    cached = service(**CACHED)
    spec = template(cached, RELEASE, "link")["spec"]
    (container,), job = spec["containers"], cache_job(cached, RELEASE)
    assert {"name": "kvasir-model", "persistentVolumeClaim": {"claimName": "demo-model"}} in spec["volumes"]
    assert [mount.get("readOnly") for mount in container["volumeMounts"] if mount["name"] == "kvasir-model"] == [
        True
    ]
    (fetching,) = job["spec"]["template"]["spec"]["containers"]
    assert fetching["args"][:2] == ["fetch", "hf://org/name"]
    assert container["args"][1] == f"file://{fetching['args'][2]}"
    assert "initContainers" not in spec
    assert "HF_TOKEN" not in variables(container)


def test_the_job_downloads_where_and_how_engines_would() -> None:
    pod = {
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "nodeSelector": {"zone": "a"},
        "sidecars": [{"name": "proxy", "image": "proxy:1"}],
        "resources": {"requests": {"memory": "64Gi"}},
        "runtimeClassName": "nvidia",
    }
    spec = cache_job(service({"pod": pod}, **CACHED), RELEASE)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert variables(container).count("HF_TOKEN") == variables(container).count("HTTPS_PROXY") == 1
    assert container["image"] == "frontend:1"
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "512Mi"}}
    assert (spec["restartPolicy"], spec["nodeSelector"]) == ("OnFailure", {"zone": "a"})
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert not {"runtimeClassName", "topologySpreadConstraints"} & set(spec)
    assert "kvasir-link" not in str(spec)
    mount = {"name": "kvasir-model", "mountPath": MODEL_DIRECTORY}
    assert mount in container["volumeMounts"]


def test_only_the_job_gets_the_credentials_of_a_bucket() -> None:
    cached = service(source="s3://models/qwen", cache={"size": "1Gi", "credentials": {"name": "bucket"}})
    secret = {"secretRef": {"name": "bucket"}}
    (fetching,) = cache_job(cached, RELEASE)["spec"]["template"]["spec"]["containers"]
    assert fetching["args"][1] == "s3://models/qwen"
    assert fetching["envFrom"] == [secret]
    for template in (engine_template, frontend_template):
        assert "bucket" not in str(template(cached, RELEASE, "link"))


def test_a_job_of_another_specification_has_another_name() -> None:
    newer = Release(frontend_image="frontend:2", engine_image="engine:1", version="1.0.0")
    jobs = [
        cache_job(service(**CACHED), RELEASE),
        cache_job(service(**CACHED), newer),
        cache_job(service(**{**CACHED, "source": "hf://org/name@v1"}), RELEASE),
    ]
    names = {job["metadata"]["name"] for job in jobs}
    assert len(names) == len(jobs)
    assert all(len(name) <= len("demo-model-12345678") for name in names)


def test_a_retained_claim_has_no_owner() -> None:
    retained = service(source="hf://org/name", cache={"size": "40Gi", "retain": True, "storageClassName": "fast"})
    assert retained.model.cache is not None
    claim = cache_claim(retained, retained.model.cache, "name-1")
    assert "ownerReferences" not in claim["metadata"]
    assert claim["metadata"]["annotations"] == {FILLED_ANNOTATION: "name-1"}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "40Gi"}},
    }


def test_the_size_of_a_cache_is_no_input_of_a_template() -> None:
    def of(size: str) -> list[str]:
        cached = service(source="hf://org/name", cache={"size": size})
        return [inputs(cached, component, "link") for component in ("engine", "frontend")]

    assert of("1Gi") == of("2Gi")
