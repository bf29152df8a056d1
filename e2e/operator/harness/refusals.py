"""Specs that the schema of an InferenceService rejects: a case for each CEL rule, and for some of the bounds.

test_schema.py sends them to the API server alone, and ../test_service_failures.py with `kubectl apply`.
"""

from collections.abc import Iterator
from typing import Any, Final

from e2e.operator.harness.schema_rules import WHOLE, Refusal, Spec


def cases() -> Iterator[tuple[str, Refusal]]:
    """Yield each case with a title."""
    for case in REFUSALS:
        yield f"{case.path}: {case.words}", case


def _engine(**fields: Any) -> Spec:
    return {"engine": fields}


def _cpu(**fields: Any) -> Spec:
    return {"engine": {"resourceName": "", **fields}}


def _pod(**fields: Any) -> Spec:
    return {"engine": {"pod": fields}}


def _mount(path: str) -> Spec:
    return _pod(volumeMounts=[{"name": "data", "mountPath": path}])


def _by_load(**fields: Any) -> Spec:
    found = {"minRanks": 1, "maxRanks": 2, "targets": {"ttft": "1s"}, **fields}
    return {"autoscaling": {name: value for name, value in found.items() if value is not None}}


def _adapters(*adapters: Spec) -> Spec:
    return {"model": {"source": "demo://", "loraAdapters": [*adapters]}}


def _cached(**cache: Any) -> Spec:
    return {"model": {"source": "hf://org/name", "cache": {"size": "1Gi", **cache}}}


_SQL: Final = {"name": "sql", "source": "hf://org/sql-lora"}
_ADAPTER_SOURCE: Final = "spec.model.loraAdapters[0].source"
_CANNOT_CHANGE: Final = "cannot be changed: create a new InferenceService for another"
REFUSALS: Final = (
    Refusal(WHOLE, "metadata.name: at most 45 characters", {}, name="a" * 46),
    Refusal(WHOLE, "metadata.name: lower-case letters", {}, name="1st"),
    Refusal(
        "spec",
        "applies only to GPUs",
        _cpu(kvCache={"memoryUtilization": 0.5}),
    ),
    Refusal(
        "spec",
        "must be a multiple of engine.nodes",
        _cpu(tensorParallelSize=3, nodes=2),
    ),
    Refusal("spec", "engine.dataParallelSize is 0", _engine(dataParallelSize=0)),
    Refusal("spec", "supported on CPUs only", _engine(tensorParallelSize=2, nodes=2)),
    Refusal("spec", "supported on CPUs only", _engine(pipelineParallelSize=2)),
    Refusal("spec", "engine.dtype float16 is not supported on CPU", _cpu(dtype="float16")),
    Refusal("spec.model.source", "unknown URI scheme", {"model": {"source": "gs://bucket/model"}}),
    Refusal("spec.model", "s3:// needs model.cache", {"model": {"source": "s3://bucket/model"}}),
    Refusal("spec.model.source", "write s3://bucket/prefix", {"model": {"source": "s3://Bucket/model"}}),
    Refusal("spec.model.source", "write hf://org/name", {"model": {"source": "hf://a/b/c"}}),
    Refusal("spec.model.source", "write file:///path", {"model": {"source": "file://model"}}),
    Refusal("spec.model.source", "write pvc://claim/path", {"model": {"source": "pvc://models/../x"}}),
    Refusal(
        "spec.model",
        "model.loraAdapters: ",
        {"model": {"source": "demo://", "servedNames": ["sql"], "loraAdapters": [_SQL]}},
    ),
    Refusal(
        "spec.model",
        "needs a model that generates text",
        {"model": {"source": "demo://", "task": "embed", "loraAdapters": []}},
    ),
    Refusal(
        "spec", "not supported with engine.nodes above 1", {**_cpu(tensorParallelSize=2, nodes=2), **_adapters()}
    ),
    Refusal("spec.model.loraAdapters", "two adapters have", _adapters(_SQL, _SQL)),
    Refusal(_ADAPTER_SOURCE, "unknown URI scheme", _adapters({**_SQL, "source": "demo://"})),
    Refusal(_ADAPTER_SOURCE, "write hf://org/name", _adapters({**_SQL, "source": "hf://a/b:Q4_K_M"})),
    Refusal(_ADAPTER_SOURCE, "write file:///path", _adapters({**_SQL, "source": "file://sql"})),
    Refusal(
        "spec.model", "model.cache is for hf:// and s3://", {"model": {"source": "demo://", "cache": {"size": 1}}}
    ),
    Refusal(
        "spec.model.cache.accessModes",
        "cannot be changed: remove model.cache",
        _cached(accessModes=["ReadWriteOnce"]),
        before=_cached(),
        name="cached",
    ),
    Refusal(
        "spec.model.cache.storageClassName",
        "cannot be changed: remove model.cache",
        _cached(storageClassName="slow"),
        before=_cached(storageClassName="fast"),
        name="fast",
    ),
    Refusal(
        "spec.model.source",
        f"{_CANNOT_CHANGE} model",
        {"model": {"source": "hf://org/other"}},
        before={"model": {"source": "demo://"}},
        name="there",
    ),
    Refusal(
        "spec.model.task",
        f"{_CANNOT_CHANGE} task",
        {"model": {"source": "demo://", "task": "embed"}},
        before={"model": {"source": "demo://"}},
        name="there",
    ),
    Refusal(
        "spec.model.quantization",
        f"{_CANNOT_CHANGE} quantization",
        {"model": {"source": "demo://", "quantization": "int8"}},
        before={"model": {"source": "demo://"}},
        name="there",
    ),
    Refusal(
        "spec.engine",
        "is below engine.maxNumSeqs",
        _engine(maxNumSeqs=64, maxNumBatchedTokens=32),
    ),
    Refusal(
        "spec.engine",
        "is set by Kvasir (link, ports, rank): remove it",
        _engine(extraArgs=["--link=tcp://x:1"]),
    ),
    Refusal("spec.engine", "has a field in spec: set that field", _engine(extraArgs=["--dtype=auto"])),
    Refusal(
        "spec.engine.dtype", f"{_CANNOT_CHANGE} dtype", _engine(dtype="bfloat16"), before=_engine(dtype="auto")
    ),
    Refusal(
        "spec.engine.nodes",
        f"{_CANNOT_CHANGE} number of nodes",
        _engine(nodes=2),
        before=_engine(tensorParallelSize=2),
        name="there",
    ),
    Refusal(
        "spec.engine.kvCache",
        "contradict each other: set one of them",
        _engine(kvCache={"memory": "1Gi", "memoryUtilization": 0.5}),
    ),
    Refusal(
        "spec.engine.kvCache.blockSize",
        f"{_CANNOT_CHANGE} block size",
        _engine(kvCache={"blockSize": 32}),
        before=_engine(kvCache={"blockSize": 16}),
        name="there",
    ),
    Refusal(
        "spec.engine.pod.env[0]",
        "KVASIR_ variables are set by Kvasir",
        _pod(env=[{"name": "KVASIR_LINK", "value": "x"}]),
    ),
    Refusal(
        "spec.engine.pod.env[0]",
        "value and valueFrom contradict",
        _pod(env=[{"name": "X", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    ),
    Refusal(
        "spec.engine.pod.volumes[0]", "volume names beginning with kvasir-", _pod(volumes=[{"name": "kvasir-tmp"}])
    ),
    Refusal(
        "spec.engine.pod.initContainers[0]",
        "container names engine, frontend",
        _pod(initContainers=[{"name": "fetch"}]),
    ),
    Refusal("spec.engine.pod.volumeMounts[0].mountPath", "write the path without", _mount("/data/../tmp")),
    Refusal("spec.engine.pod.volumeMounts[0].mountPath", "Kvasir mounts volumes at", _mount("/etc/kvasir")),
    Refusal("spec.engine.pod.labels", "labels of app.kubernetes.io/", _pod(labels={"app.kubernetes.io/name": "x"})),
    Refusal(
        "spec.engine.pod.annotations",
        "annotations of serving.kvasir.dev/",
        _pod(annotations={"serving.kvasir.dev/link-keys": "x"}),
    ),
    Refusal(
        "spec.frontend", "is set by Kvasir (link, address, shutdown)", {"frontend": {"extraArgs": ["--port", "1"]}}
    ),
    Refusal("spec.frontend", "has a field in spec: set that field", {"frontend": {"extraArgs": ["--api-key=x"]}}),
    Refusal(
        "spec.frontend",
        "has a field in spec: set that field",
        {"frontend": {"extraArgs": ["--admin-api-key=x"]}},
    ),
    Refusal(
        "spec.frontend",
        "has a field in spec: set that field",
        {"frontend": {"extraArgs": ["--max-client-share", "1"]}},
    ),
    Refusal("spec.frontend.drainTimeout", "too long: at most 24h", {"frontend": {"drainTimeout": "24h1s"}}),
    Refusal(
        "spec.rollout",
        "rollout.maxSurge and rollout.maxUnavailable are both 0",
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
    ),
    Refusal(
        "spec.autoscaling",
        "is above autoscaling.maxRanks",
        {"autoscaling": {"minRanks": 2, "maxRanks": 1}},
    ),
    Refusal("spec.autoscaling", "autoscaling.toZeroAfter: set it", {"autoscaling": {"minRanks": 0}}),
    Refusal("spec.autoscaling", "needs autoscaling.maxRanks", _by_load(maxRanks=None)),
    Refusal("spec.autoscaling", "only with autoscaling.targets", _by_load(targets=None, scaleUpAfter="1m")),
    Refusal("spec.autoscaling.targets.ttft", "use 1ms to 1h", _by_load(targets={"ttft": "2h"})),
    Refusal("spec.autoscaling.scaleUpAfter", "too long: at most 1h", _by_load(scaleUpAfter="2h")),
    Refusal(
        "spec.autoscaling",
        "autoscaling.toZeroAfter: set it",
        {"autoscaling": {"minRanks": 1, "toZeroAfter": "1m"}},
    ),
    Refusal(
        "spec.autoscaling.toZeroAfter",
        "too short: at least 1s",
        {"autoscaling": {"minRanks": 0, "toZeroAfter": "500ms"}},
    ),
    Refusal(
        "spec.network.allowFrom[0]",
        "and selectors contradict",
        {"network": {"allowFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}, "podSelector": {}}]}},
    ),
    Refusal(
        "spec.expose",
        "expose.gateway and expose.ingressClassName contradict",
        {"expose": {"host": "llm.example.com", "ingressClassName": "nginx", "gateway": {"name": "public"}}},
    ),
    Refusal(
        "spec.expose",
        "the listener of the Gateway has the certificate",
        {"expose": {"host": "llm.example.com", "tls": {"secretName": "x"}, "gateway": {"name": "public"}}},
    ),
    Refusal(
        "spec.operatorClass",
        f"{_CANNOT_CHANGE} operator",
        {"operatorClass": "other"},
        before={"model": {"source": "demo://"}},
        name="there",
    ),
    # Bounds, with Kubernetes' own messages.
    Refusal("spec.engine.dataParallelSize", "greater than or equal to 0", _engine(dataParallelSize=-1)),
    Refusal("spec.engine.kvCache.memory", "greater than or equal to 1", _cpu(kvCache={"memory": -1})),
    Refusal("spec.engine.kvCache.memory", "should match", _cpu(kvCache={"memory": "0Gi"})),
    Refusal("spec.engine.pod.resources.limits.cpu", "should match", _pod(resources={"limits": {"cpu": "two"}})),
    Refusal(
        "spec.engine.pod.resources.limits.cpu", "should be greater than", _pod(resources={"limits": {"cpu": -0.5}})
    ),
    Refusal("spec.expose.path", "should match", {"expose": {"host": "llm.example.com", "path": "/qwen/"}}),
    Refusal("spec.frontend.maxClientShare", "less than or equal to 1", {"frontend": {"maxClientShare": 2}}),
    Refusal("spec.frontend.maxParsedBytes", "should match", {"frontend": {"maxParsedBytes": "0Mi"}}),
    Refusal("spec.frontend.toolCallParser", "should match", {"frontend": {"toolCallParser": "her mes"}}),
    Refusal("spec.network.allowFrom", "at least 1 items", {"network": {"allowFrom": []}}),
    Refusal(
        "spec.network.allowMetricsFrom[0].ipBlock.cidr",
        "must be of type cidr",
        {"network": {"allowMetricsFrom": [{"ipBlock": {"cidr": "192.0.2.0/33"}}]}},
    ),
    Refusal("spec.rollout.drainTimeout", "should match", {"rollout": {"drainTimeout": "soon"}}),
)
