"""The InferenceService as typed Python: the one place that reads the resource's raw dictionary.

Used by the operator's reconcile and by `kvasir up`. What comes in has been defaulted and validated by the schema
in crds/ (by the API server, or by kvasir.local), so a missing required field here is a bug, not a user's mistake.
What an older schema let through is `InvalidSpec`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvasir_operator.units import parse_bytes, parse_duration

Json = Mapping[str, Any]
"""A piece of a Kubernetes object that is passed on as it is."""
Value = TypeVar("Value")


class InvalidSpec(ValueError):
    """Names the field and what it should be."""


@dataclass(frozen=True)
class SecretKey:
    name: str
    key: str


@dataclass(frozen=True)
class Model:
    source: str
    """hf://org/name[@revision], file:///path or demo://"""
    served_names: tuple[str, ...]
    """At least one."""
    token_secret: SecretKey | None


@dataclass(frozen=True)
class KVCache:
    block_size: int
    """Tokens per block."""
    memory_utilization: float
    """Share of the GPU's memory; not for CPU engines, nor with `memory`."""
    memory: int | None
    """Bytes."""


@dataclass(frozen=True)
class Pod:
    """What the user adds to a kind of pod, in Kubernetes' own words."""

    resources: Json
    node_selector: Json
    tolerations: tuple[Json, ...]
    affinity: Json
    topology_spread_constraints: tuple[Json, ...]
    priority_class_name: str | None
    runtime_class_name: str | None
    env: tuple[Json, ...]
    env_from: tuple[Json, ...]
    volumes: tuple[Json, ...]
    volume_mounts: tuple[Json, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class Engine:
    data_parallel_size: int
    resource_name: str
    """The extended resource that an engine takes one of; "" for the CPU."""
    dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    kv_cache: KVCache
    extra_args: tuple[str, ...]
    pod: Pod


@dataclass(frozen=True)
class Frontend:
    replicas: int
    api_keys: str | None
    """Name of the Secret with the accepted keys."""
    drain_timeout: float
    """Seconds."""
    extra_args: tuple[str, ...]
    pod: Pod


@dataclass(frozen=True)
class Rollout:
    drain_timeout: float
    """Seconds that an engine has to finish its requests."""


@dataclass(frozen=True)
class InferenceService:
    name: str
    namespace: str
    uid: str
    model: Model
    engine: Engine
    frontend: Frontend
    rollout: Rollout
    image: str | None
    """None: the images of the operator's release."""
    image_pull_policy: str | None
    image_pull_secrets: tuple[str, ...]


def parse_service(resource: Json) -> InferenceService:
    """The typed form of a defaulted InferenceService. Raises InvalidSpec."""
    metadata, spec = resource["metadata"], resource["spec"]
    return InferenceService(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        model=_model(spec["model"], metadata["name"]),
        engine=_engine(spec["engine"]),
        frontend=_frontend(spec["frontend"]),
        rollout=Rollout(drain_timeout=_parsed(parse_duration, spec["rollout"], "drainTimeout", "rollout")),
        image=spec.get("image"),
        image_pull_policy=spec.get("imagePullPolicy"),
        image_pull_secrets=tuple(secret["name"] for secret in spec.get("imagePullSecrets", ())),
    )


def _model(model: Json, name: str) -> Model:
    token = model.get("tokenSecret")
    return Model(
        source=model["source"],
        served_names=tuple(model.get("servedNames", ())) or (name,),
        token_secret=SecretKey(token["name"], token["key"]) if token else None,
    )


def _engine(engine: Json) -> Engine:
    cache = engine["kvCache"]
    return Engine(
        data_parallel_size=engine["dataParallelSize"],
        resource_name=engine["resourceName"],
        dtype=engine["dtype"],
        max_model_len=engine.get("maxModelLen"),
        max_num_seqs=engine.get("maxNumSeqs"),
        max_num_batched_tokens=engine.get("maxNumBatchedTokens"),
        kv_cache=KVCache(
            block_size=cache["blockSize"],
            memory_utilization=float(cache["memoryUtilization"]),
            memory=_parsed(parse_bytes, cache, "memory", "engine.kvCache") if "memory" in cache else None,
        ),
        extra_args=tuple(engine.get("extraArgs", ())),
        pod=_pod(engine.get("pod", {})),
    )


def _frontend(frontend: Json) -> Frontend:
    keys = frontend.get("apiKeys")
    return Frontend(
        replicas=frontend["replicas"],
        api_keys=keys["name"] if keys else None,
        drain_timeout=_parsed(parse_duration, frontend, "drainTimeout", "frontend"),
        extra_args=tuple(frontend.get("extraArgs", ())),
        pod=_pod(frontend.get("pod", {})),
    )


def _parsed(parse: Callable[[Any], Value], fields: Json, name: str, where: str) -> Value:
    try:
        return parse(fields[name])
    except ValueError as error:
        raise InvalidSpec(f"spec.{where}.{name}: {error}") from None


def _pod(pod: Json) -> Pod:
    def listed(field: str) -> tuple[Json, ...]:
        entries: Sequence[Json] = pod.get(field, ())
        return tuple(entries)

    return Pod(
        resources=pod.get("resources", {}),
        node_selector=pod.get("nodeSelector", {}),
        tolerations=listed("tolerations"),
        affinity=pod.get("affinity", {}),
        topology_spread_constraints=listed("topologySpreadConstraints"),
        priority_class_name=pod.get("priorityClassName"),
        runtime_class_name=pod.get("runtimeClassName"),
        env=listed("env"),
        env_from=listed("envFrom"),
        volumes=listed("volumes"),
        volume_mounts=listed("volumeMounts"),
        labels=pod.get("labels", {}),
        annotations=pod.get("annotations", {}),
    )
