import copy
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import normalise
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.environment import RESERVED_DIRECTORIES
from kvasir_contract.failure import TERMINATION_MESSAGE_PATH

ROOT = Path(__file__).parents[3]
CRD = yaml.safe_load((ROOT / "crds" / "inferenceservices.serving.kvasir.dev.yaml").read_text())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = CRDSchema.of_crd()

MINIMAL: dict[str, Any] = {
    "apiVersion": "serving.kvasir.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "demo"},
    "spec": {"model": {"source": "demo://"}},
}


def resource(**fields: Any) -> dict[str, Any]:
    """MINIMAL with fields set: engine__kvCache__memory="1Gi" is spec.engine.kvCache.memory."""
    result = copy.deepcopy(MINIMAL)
    for path, value in fields.items():
        *parents, last = path.split("__")
        place = result if path.startswith("metadata") else result["spec"]
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result


def problems(**fields: Any) -> list[str]:
    return [str(problem) for problem in SCHEMA.complete(resource(**fields))[1]]


def pod(**fields: Any) -> dict[str, Any]:
    return {"engine__pod": fields}


VIOLATIONS: list[tuple[dict[str, Any], str]] = [
    ({"metadata__name": "a" * 46}, "metadata.name: at most 45 characters"),
    ({"metadata__name": "Demo"}, "metadata.name: lower-case letters"),
    ({"metadata__name": "0demo"}, "metadata.name: lower-case letters"),
    ({"metadata__label": {}}, "metadata.label: unknown field; did you mean labels?"),
    ({"model": {}}, "spec.model: source is required"),
    ({"model__source": ""}, "spec.model.source: unknown URI scheme"),
    ({"model__source": "gs://bucket"}, "s3://bucket/prefix or demo://, not 'gs://bucket'"),
    ({"model__source": "s3://bucket"}, "model.source s3:// needs model.cache"),
    ({"model__source": "oci://claim/path"}, "spec.model.source: unknown URI scheme"),
    ({"model__source": "Qwen/Qwen3"}, "spec.model.source: unknown URI scheme"),
    ({"model__source": "hf://a/b/c"}, "spec.model.source: write hf://org/name"),
    ({"model__source": "pvc://Models/a"}, "spec.model.source: write pvc://claim/path"),
    ({"model__source": "hf://org/name:"}, "spec.model.source: write hf://org/name"),
    ({"model__source": "file://models/x"}, "spec.model.source: write file:///path"),
    ({"model__servedNames": ["a", "a"]}, "spec.model.servedNames: a is there more than once"),
    ({"model__servedNames": "a"}, "spec.model.servedNames: must be a list, not the string 'a'"),
    ({"model__servedNames": ["a b"]}, "spec.model.servedNames[0]: 'a b' is not of the form"),
    ({"model__servedNames": [f"n{i}" for i in range(17)]}, "spec.model.servedNames: has 17 items; at most 16"),
    ({"model__tokenSecret": {"key": "x"}}, "spec.model.tokenSecret: name is required"),
    ({"engine__maxNumSeq": 8}, "spec.engine.maxNumSeq: unknown field; did you mean maxNumSeqs?"),
    ({"engine__maxnumseqs": 8}, "spec.engine.maxnumseqs: unknown field; did you mean maxNumSeqs?"),
    ({"engine__tensorParallelSize": 0}, "spec.engine.tensorParallelSize: 0 is too small: at least 1"),
    ({"engine__tensorParallelSize": 1025}, "spec.engine.tensorParallelSize: 1025 is too large: at most 1024"),
    ({"engine__tensorParallelsize": 2}, "tensorParallelsize: unknown field; did you mean tensorParallelSize?"),
    ({"scaling": {"minRanks": 0}}, "spec.scaling: unknown field"),
    (
        {"autoscaling": {"minRanks": 2, "maxRanks": 1}},
        "spec.autoscaling: autoscaling.minRanks is above autoscaling.maxRanks",
    ),
    ({"autoscaling": {"minRanks": 0}}, "spec.autoscaling: autoscaling.toZeroAfter: set it"),
    (
        {"autoscaling": {"minRanks": 1, "targets": {"queueSeconds": 2}}},
        "spec.autoscaling: autoscaling.targets needs autoscaling.maxRanks",
    ),
    (
        {"autoscaling": {"minRanks": 1, "scaleDownAfter": "5m"}},
        "spec.autoscaling: autoscaling.scaleUpAfter and scaleDownAfter have an effect only with",
    ),
    (
        {"autoscaling": {"minRanks": 1, "maxRanks": 2, "targets": {"ttft": "0s"}}},
        "spec.autoscaling.targets.ttft: use 1ms to 1h, not '0s'",
    ),
    ({"autoscaling": {"minRanks": 1, "maxRanks": 2, "targets": {}}}, "spec.autoscaling.targets"),
    (
        {"autoscaling": {"minRanks": 1, "toZeroAfter": "1m"}},
        "autoscaling.toZeroAfter: set it with",
    ),
    (
        {"autoscaling": {"minRanks": 0, "toZeroAfter": "0s"}},
        "spec.autoscaling.toZeroAfter: too short: at least 1s, not '0s'",
    ),
    ({"engine__dataParallelSize": 0}, "engine.dataParallelSize is 0: only a service that may go to zero"),
    ({"engine__dataParallelSize": "2"}, "spec.engine.dataParallelSize: must be a whole number, not the string '2'"),
    ({"engine__dataParallelSize": 1.5}, "spec.engine.dataParallelSize: must be a whole number, not 1.5"),
    ({"engine__dataParallelSize": True}, "spec.engine.dataParallelSize: must be a whole number, not true"),
    ({"engine__dtype": "int8"}, "spec.engine.dtype: 'int8' is not one of auto, float32, bfloat16, float16"),
    ({"engine__resourceName": "gpu"}, "spec.engine.resourceName: 'gpu' is not of the form"),
    ({"engine__maxModelLen": 0}, "spec.engine.maxModelLen: 0 is too small"),
    ({"engine__kvCache__blockSize": 2048}, "spec.engine.kvCache.blockSize: 2048 is too large: at most 1024"),
    ({"engine__kvCache__memory": "4 GB"}, "spec.engine.kvCache.memory: '4 GB' is not of the form"),
    ({"engine__kvCache__memory": -1}, "spec.engine.kvCache.memory: -1 is too small: at least 1"),
    ({"engine__kvCache__memory": "0Gi"}, "spec.engine.kvCache.memory: '0Gi' is not of the form"),
    ({"engine__kvCache__memory": 1.5}, "spec.engine.kvCache.memory: must be a whole number or a string, not 1.5"),
    ({"engine__kvCache__memoryUtilization": 1.2}, "spec.engine.kvCache.memoryUtilization: 1.2 is too large"),
    ({"engine__kvCache__memoryUtilization": "0.8"}, "memoryUtilization: must be a number, not the string '0.8'"),
    (
        {"engine__kvCache": {"memory": "1Gi", "memoryUtilization": 0.5}},
        "engine.kvCache.memory and engine.kvCache.memoryUtilization contradict each other",
    ),
    (
        {"engine": {"resourceName": "", "kvCache": {"memoryUtilization": 1}}},
        "spec: engine.kvCache.memoryUtilization applies only to GPUs",
    ),
    ({"engine": {"resourceName": "", "dtype": "float16"}}, "spec: engine.dtype float16 is not supported on CPU"),
    (
        {"engine": {"maxNumSeqs": 16, "maxNumBatchedTokens": 15}},
        "engine.maxNumBatchedTokens is below engine.maxNumSeqs",
    ),
    ({"engine__extraArgs": ["--link", "tcp://x:1"]}, "spec.engine: engine.extraArgs: --link is set by Kvasir"),
    ({"engine__extraArgs": ["--ops-port=1"]}, "engine.extraArgs: --ops-port=1 is set by Kvasir"),
    ({"engine__extraArgs": ["--dtype=auto"]}, "engine.extraArgs: --dtype=auto has a field in spec"),
    ({"engine__nodes": 0}, "spec.engine.nodes: 0 is too small: at least 1"),
    (
        {"engine": {"resourceName": "", "nodes": 65, "tensorParallelSize": 65}},
        "spec.engine.nodes: 65 is too large: at most 64",
    ),
    (
        {"engine": {"resourceName": "", "nodes": 2}},
        "engine.tensorParallelSize · engine.pipelineParallelSize must be a multiple of engine.nodes",
    ),
    (
        {"engine": {"resourceName": "", "nodes": 4, "tensorParallelSize": 3, "pipelineParallelSize": 2}},
        "must be a multiple of engine.nodes",
    ),
    (
        {"engine": {"nodes": 2, "tensorParallelSize": 2}},
        "spec: engine.nodes and engine.pipelineParallelSize above 1",
    ),
    ({"engine": {"resourceName": "amd.com/gpu", "pipelineParallelSize": 2}}, "engine.resourceName is amd.com/gpu"),
    ({"engine__pipelineParallelSize": 0}, "spec.engine.pipelineParallelSize: 0 is too small: at least 1"),
    ({"engine__extraArgs": ["-pp=2"]}, "engine.extraArgs: -pp=2 has a field in spec"),
    ({"engine__extraArgs": ["--nnodes", "2"]}, "engine.extraArgs: --nnodes has a field in spec"),
    ({"engine__extraArgs": ["--master-port=1"]}, "engine.extraArgs: --master-port=1 is set by Kvasir"),
    ({"engine__extraArgs": ["--tensor-parallel-size=2"]}, "--tensor-parallel-size=2 has a field in spec"),
    ({"engine__extraArgs": ["-tp", "2"]}, "engine.extraArgs: -tp has a field in spec"),
    (
        {"engine__extraArgs": ["--log-level=$(X)"]},
        "spec.engine.extraArgs[0]: '--log-level=$(X)' is not of the form",
    ),
    ({"frontend__extraArgs": ["--port=1"]}, "frontend.extraArgs: --port=1 is set by Kvasir"),
    ({"frontend__extraArgs": ["--ops-port=1"]}, "frontend.extraArgs: --ops-port=1 is set by Kvasir"),
    *(
        ({"frontend__extraArgs": args}, f"frontend.extraArgs: {args[0]} has a field in spec")
        for args in (
            ["--api-key", "x"],
            ["--api-key-dir=x"],
            ["--admin-api-key=x"],
            ["--admin-api-key-dir", "x"],
        )
    ),
    ({"frontend__replicas": 0}, "spec.frontend.replicas: 0 is too small"),
    ({"frontend__drainTimeout": "5 minutes"}, "spec.frontend.drainTimeout: '5 minutes' is not of the form"),
    ({"frontend__drainTimeout": 30}, "spec.frontend.drainTimeout: must be a string, not 30"),
    ({"rollout__maxUnavailabel": 1}, "spec.rollout.maxUnavailabel: unknown field; did you mean maxUnavailable?"),
    ({"imagePullPolicy": "Sometimes"}, "spec.imagePullPolicy: 'Sometimes' is not one of"),
    (pod(resources={"limits": {"cpu": -0.5}}), "spec.engine.pod.resources.limits.cpu: -0.5 is too small"),
    (pod(resources={"limits": {"cpu": ["2"]}}), "spec.engine.pod.resources.limits.cpu: has 1 items; at most 0"),
    (pod(resources={"limits": {"cpu": "two"}}), "spec.engine.pod.resources.limits.cpu: 'two' is not of the form"),
    (
        pod(env=[{"name": "KVASIR_LINK", "value": "x"}]),
        "spec.engine.pod.env[0]: KVASIR_LINK: KVASIR_ variables are set by Kvasir",
    ),
    (pod(env=[{"name": "A"}, {"name": "A"}]), "spec.engine.pod.env: A is there more than once"),
    (
        pod(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
        "A: value and valueFrom",
    ),
    (pod(env=[{"name": "A", "valueFrom": {}}]), "spec.engine.pod.env[0].valueFrom: has 0 fields; at least 1"),
    (pod(volumes=[{"emptyDir": {}}]), "spec.engine.pod.volumes[0]: name is required"),
    (pod(volumes=[{"name": "kvasir-tmp", "emptyDir": {}}]), "kvasir-tmp: volume names beginning with kvasir-"),
    (
        pod(volumeMounts=[{"name": "x", "mountPath": "/data/../tmp"}]),
        "spec.engine.pod.volumeMounts[0].mountPath: write the path without the segments '.' and '..'",
    ),
    (pod(volumeMounts=[{"name": "x", "mountPath": "//tmp"}]), "mountPath: '//tmp' is not of the form"),
    ({"frontend__drainTimeout": "1440m1s"}, "spec.frontend.drainTimeout: too long: at most 24h"),
    ({"frontend__drainTimeout": "999999999h"}, "spec.frontend.drainTimeout: '999999999h' is not of the form"),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "rollout.maxSurge and rollout.maxUnavailable are both 0"),
    ({"network__allowFrom": []}, "spec.network.allowFrom: has 0 items; at least 1"),
    ({"network__allowFrom": [{}]}, "spec.network.allowFrom[0]: has 0 fields; at least 1"),
    (
        {"network__allowFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}, "podSelector": {}}]},
        "spec.network.allowFrom[0]: ipBlock 192.0.2.0/24 and selectors contradict each other",
    ),
    ({"network__allowMetricsFrom": [{"ipBlock": {"cidr": "192.0.2.1"}}]}, "'192.0.2.1' is not of the form"),
    ({"operatorClass": "Mine"}, "spec.operatorClass: 'Mine' is not of the form"),
    (pod(labels={"app.kubernetes.io/name": "x"}), "spec.engine.pod.labels: app.kubernetes.io/name: labels of"),
    (
        pod(annotations={"serving.kvasir.dev/x": "y"}),
        "spec.engine.pod.annotations: serving.kvasir.dev/x: annotations of",
    ),
    (pod(sidecars=[{"name": "engine"}]), "spec.engine.pod.sidecars[0]: engine: container names engine, frontend"),
    (pod(initContainers=[{"image": "x"}]), "spec.engine.pod.initContainers[0]: name is required"),
    (pod(resourceClaims=[{"name": "nic", "clas": "x"}]), "spec.engine.pod.resourceClaims[0].clas: unknown field"),
    (pod(nodeSelector={"gpu": 1}), "spec.engine.pod.nodeSelector.gpu: must be a string, not 1"),
    (pod(tolerations=[{"operator": "In"}]), "spec.engine.pod.tolerations[0].operator: 'In' is not one of"),
    (pod(topologySpreadConstraints=[{"maxSkew": 1}]), "topologySpreadConstraints[0]: topologyKey is required"),
]

VALID: list[dict[str, Any]] = [
    {},
    {"metadata__name": "a" * 45},
    {
        "metadata": {
            "name": "demo",
            "uid": "x",
            "creationTimestamp": None,
            "managedFields": [{"manager": "kubectl"}],
        }
    },
    {"model__source": "hf://Qwen/Qwen3-0.6B@refs/pr/1"},
    {"model__source": "pvc://models"},
    {"model__source": "pvc://models/qwen/q4.gguf"},
    {"model__source": "hf://org/name-GGUF:UD-Q4_K_XL@v1"},
    {"model__source": "file:///models/my model"},
    {"model__source": "file:///models/model-Q4_K_M.gguf"},
    {"model__tokenSecret": {"name": "hf"}},
    {"engine": {"resourceName": "", "kvCache": {"memory": 67108864}}},
    {"engine": {"maxNumSeqs": 16, "maxNumBatchedTokens": 16}},
    {"engine__kvCache__memoryUtilization": 1},
    {"engine__maxModelLen": None, "frontend": None},
    {"engine__extraArgs": ["--log-level=debug", "--linkage", "-tpx"]},
    {"engine__tensorParallelSize": 4},
    {"engine": {"resourceName": "", "nodes": 4, "tensorParallelSize": 8}},
    {"engine": {"resourceName": "", "nodes": 3, "tensorParallelSize": 2, "pipelineParallelSize": 3}},
    pod(affinity={"nodeAffinity": {"anything": [1]}}, volumes=[{"name": "x", "nfs": {"server": "y"}}]),
    pod(resources={"limits": {"cpu": 2, "memory": "4Gi"}}, labels={"team": "x"}),
    pod(resources={"limits": {"cpu": 0.5, "memory": "1e9"}, "requests": {"cpu": ".5"}}),
    {"engine__kvCache__memory": "0.5Gi"},
    {"rollout": {"maxSurge": 0}, "frontend__drainTimeout": "24h"},
    {"network__allowFrom": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "2001:db8::/64"}}]},
    {"paused": True, "operatorClass": "mine"},
    pod(env=[{"name": "A"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
]


@pytest.mark.parametrize(("fields", "message"), VIOLATIONS)
def test_each_violation_is_told_alone_with_its_place(fields: dict[str, Any], message: str) -> None:
    found = problems(**fields)
    assert any(message in problem for problem in found), found
    assert len(found) == 1 or "topologySpread" in message, found


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({"engine__kvCache__memory": "4GB"}, "512Mi or 4Gi"),
        ({"frontend__drainTimeout": "5 minutes"}, "30s, 10m or 1h30m"),
        (pod(resources={"limits": {"memory": "4GB"}}), "2, 500m or 4Gi"),
    ],
)
def test_a_wrong_quantity_is_told_with_accepted_ones(fields: dict[str, Any], accepted: str) -> None:
    [problem] = problems(**fields)
    assert problem.endswith(f", such as {accepted}")


@pytest.mark.parametrize("fields", VALID)
def test_what_is_right_passes(fields: dict[str, Any]) -> None:
    assert problems(**fields) == []


@pytest.mark.parametrize("directory", [*RESERVED_DIRECTORIES, TERMINATION_MESSAGE_PATH])
def test_mounts_around_reserved_directories_are_rejected(directory: str) -> None:
    below, above = f"{directory}/inner", [str(parent) for parent in PurePosixPath(directory).parents]
    for path in (directory, directory + "/", below, *above, *(f"{parent}/" for parent in above)):
        found = problems(**pod(volumeMounts=[{"name": "x", "mountPath": path}]))
        words = "is not of the form" if path.startswith("//") or path == "/" else "Kvasir mounts volumes"
        assert len(found) == 1, path
        assert words in found[0]


@pytest.mark.parametrize("path", ["/data", "/data/", "/dev/x", "/tmpfs", "/var/cache2", "/etc/kvasir.d", "/..data"])
def test_mounts_elsewhere_are_accepted(path: str) -> None:
    assert problems(**pod(volumeMounts=[{"name": "x", "mountPath": path}])) == []


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        metadata__name="Demo",
        model__source="gs://x",
        engine={"maxNumSeqs": 2, "maxNumBatchedTokens": 1, "dtypes": "auto", "dataParallelSize": 0},
    )
    assert len(found) == 5


def test_every_default_is_filled_in() -> None:
    given = copy.deepcopy(MINIMAL)
    completed, _ = SCHEMA.complete(given)
    assert completed["spec"] == {
        "model": {"source": "demo://", "task": "auto", "quantization": "auto"},
        "engine": {
            "dataParallelSize": 1,
            "tensorParallelSize": 1,
            "pipelineParallelSize": 1,
            "nodes": 1,
            "resourceName": "nvidia.com/gpu",
            "dtype": "auto",
            "kvCache": {"blockSize": 16, "memoryUtilization": 0.9},
        },
        "frontend": {"drainTimeout": "300s"},
        "rollout": {"maxSurge": 1, "maxUnavailable": 1, "drainTimeout": "60s", "surgeTimeout": "30s"},
        "network": {"policy": True},
        "paused": False,
        "operatorClass": "",
    }
    assert given == MINIMAL, "the input is unchanged"


def test_a_resource_without_metadata_or_spec_says_so() -> None:
    found = [str(problem) for problem in SCHEMA.complete({"kind": "InferenceService"})[1]]
    assert found == ["metadata is required", "spec is required"]


def test_a_broken_rule_or_one_without_message_is_found() -> None:
    schema = CRDSchema(
        {"type": "object", "properties": {}, "x-kubernetes-validations": [{"rule": "self.nothing", "message": "x"}]}
    )
    with pytest.raises(Exception, match="nothing"):
        schema.complete({"metadata": {"name": "x"}})


NAMES = (
    "gpt2",
    "org/name",
    "a/b/c",
    "org/",
    "/name",
    "",
    "-a/b",
    "a/b-",
    "a/.b",
    "_a/b_",
    "a..b/c",
    "a/b--c",
    "Org-1/N.a_m-e",
    "a b",
)
REVISIONS = ("", "@main", "@", "@refs/pr/1", "@v1.0+x", "@a b", "@a@b", "@..", "@a--b")


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_cluster_and_command_line_take_the_same_hub_models(name: str, revision: str) -> None:
    source = f"hf://{name}{revision}"
    try:
        accepted = normalise(source) == source
    except HubError:
        accepted = False
    assert (problems(model__source=source) == []) is accepted
