"""The InferenceService as typed Python. Only this module reads the resource's raw dictionary.

The operator and `kvasir up` use it. The schema in crds/ has already defaulted and validated the resource, so a
missing required field means that the installed schema is older than the operator. A value that an older schema
accepted raises `InvalidSpec`.
"""

from dataclasses import dataclass

from kvasir_contract.units import parse_duration
from kvasir_operator.autoscaling_spec import AutoscalingSpec, parse_autoscaling
from kvasir_operator.pod_spec import Json, PodSpec, parse_pod
from kvasir_operator.spec_values import InvalidSpec, optional_size, parsed


@dataclass(frozen=True)
class SecretKey:
    name: str
    key: str


@dataclass(frozen=True)
class ModelSpec:
    source: str
    """hf://org/name[@revision], file:///path or demo://"""
    served_names: tuple[str, ...]
    """Never empty."""
    token_secret: SecretKey | None


@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int
    memory_utilization: float
    """Share of the GPU's memory. Ignored for CPU engines and if `memory` is set."""
    memory: int | None
    """In bytes."""


@dataclass(frozen=True)
class EngineSpec:
    data_parallel_size: int
    resource_name: str
    """The extended resource that each worker of an engine requests; "" for the CPU."""
    dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int | None
    kv_cache: KVCacheSpec
    extra_args: tuple[str, ...]
    pod: PodSpec
    # Fields with defaults are not part of the digest of a service that does not set them.
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nodes: int = 1
    """Pods of each engine."""
    image: str | None = None

    @property
    def workers(self) -> int:
        """Worker processes of an engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def workers_per_pod(self) -> int:
        return self.workers // self.nodes

    @property
    def pods(self) -> int:
        """Pods of all desired engines."""
        return self.data_parallel_size * self.nodes


@dataclass(frozen=True)
class FrontendSpec:
    replicas: int
    api_keys: str | None
    """Name of the Secret that holds the accepted keys."""
    admin_api_keys: str | None
    """Name of the Secret that holds the keys for control calls."""
    max_client_share: float | None
    """Fraction of the requests in flight that one client may have."""
    max_parsed_bytes: int | None
    """Memory of the bodies of all requests in flight."""
    tool_call_parser: str | None
    """How the model writes tool calls. None: as its chat template shows."""
    reasoning_parser: str | None
    """How the model marks its reasoning. None: as its chat template shows."""
    drain_timeout: float
    """In seconds."""
    extra_args: tuple[str, ...]
    pod: PodSpec
    image: str | None = None
    is_autoscaled: bool = False
    """Whether `replicas` is not set, so that an autoscaler may scale the Deployment."""

    @property
    def serves_https(self) -> bool:
        """Whether the HTTP port speaks TLS, which only `extraArgs` can set."""
        return any(arg.partition("=")[0].replace("_", "-") == "--ssl-certfile" for arg in self.extra_args)

    @property
    def key_secrets(self) -> dict[str, str]:
        """Return the names of the Secrets with keys, by the field that names them."""
        secrets = {"apiKeys": self.api_keys, "adminApiKeys": self.admin_api_keys}
        return {field: name for field, name in secrets.items() if name}


@dataclass(frozen=True)
class RolloutSpec:
    """How pods are replaced. At least one of the two numbers is positive."""

    max_surge: int
    """How many engines may run in addition to the desired ones during a roll-out."""
    max_unavailable: int
    """How many engines may be missing if the cluster has no room for additional ones."""
    drain_timeout: float
    """Seconds that an engine has to finish its requests."""
    surge_timeout: float
    """Seconds that an additional engine may wait for a node."""


@dataclass(frozen=True)
class NetworkSpec:
    policy: bool
    """Whether NetworkPolicies restrict access to the pods."""
    allow_from: tuple[Json, ...] | None
    """Peers that may use the API, as in a NetworkPolicy; None for everyone."""
    allow_metrics_from: tuple[Json, ...]
    """Peers that may read metrics and status, in addition to the operator."""


@dataclass(frozen=True)
class InferenceService:
    name: str
    namespace: str
    uid: str
    model: ModelSpec
    engine: EngineSpec
    frontend: FrontendSpec
    rollout: RolloutSpec
    network: NetworkSpec
    paused: bool
    """Whether the operator only reports the status and changes nothing."""
    operator_class: str
    """The operator installation that handles the service."""
    autoscaling: AutoscalingSpec  # engine.data_parallel_size is within its limits
    image: str | None
    """None for the images of the operator's release."""
    image_pull_policy: str | None
    image_pull_secrets: tuple[str, ...]


def parse_service(resource: Json) -> InferenceService:
    """Return the typed form of a defaulted InferenceService. Raises InvalidSpec."""
    try:
        return _parse(resource["metadata"], resource["spec"])
    except KeyError as error:
        raise InvalidSpec(
            f"spec lacks {error}, which the schema sets by default: the CustomResourceDefinition is older "
            "than the operator; apply crds/"
        ) from error


def _parse(metadata: Json, spec: Json) -> InferenceService:
    autoscaling = parse_autoscaling(spec.get("autoscaling"), spec["engine"]["dataParallelSize"])
    return InferenceService(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        model=_model(spec["model"], metadata["name"]),
        engine=_engine(spec["engine"], autoscaling),
        frontend=_frontend(spec["frontend"]),
        rollout=_rollout(spec["rollout"]),
        network=_network(spec["network"]),
        paused=spec["paused"],
        operator_class=spec["operatorClass"],
        autoscaling=autoscaling,
        image=spec.get("image"),
        image_pull_policy=spec.get("imagePullPolicy"),
        image_pull_secrets=tuple(secret["name"] for secret in spec.get("imagePullSecrets", ())),
    )


def _model(model: Json, name: str) -> ModelSpec:
    token = model.get("tokenSecret")
    return ModelSpec(
        source=model["source"],
        served_names=tuple(model.get("servedNames", ())) or (name,),
        token_secret=SecretKey(token["name"], token["key"]) if token else None,
    )


def _engine(engine: Json, autoscaling: AutoscalingSpec) -> EngineSpec:
    cache = engine["kvCache"]
    return EngineSpec(
        data_parallel_size=autoscaling.limited(engine["dataParallelSize"]),
        resource_name=engine["resourceName"],
        dtype=engine["dtype"],
        max_model_len=engine.get("maxModelLen"),
        max_num_seqs=engine.get("maxNumSeqs"),
        max_num_batched_tokens=engine.get("maxNumBatchedTokens"),
        long_prefill_token_threshold=engine.get("longPrefillTokenThreshold"),
        kv_cache=KVCacheSpec(
            block_size=cache["blockSize"],
            memory_utilization=float(cache["memoryUtilization"]),
            memory=optional_size(cache, "memory", "engine.kvCache"),
        ),
        extra_args=tuple(engine.get("extraArgs", ())),
        pod=_engine_pod(engine),
        tensor_parallel_size=engine["tensorParallelSize"],
        pipeline_parallel_size=engine["pipelineParallelSize"],
        nodes=engine["nodes"],
        image=engine.get("image"),
    )


def _engine_pod(engine: Json) -> PodSpec:
    pod, resource_name = parse_pod(engine.get("pod", {}), "engine.pod"), engine["resourceName"]
    for kind, amounts in pod.resources.items():
        if resource_name in amounts:
            where = f"spec.engine.pod.resources.{kind}"
            raise InvalidSpec(f"{where}: remove {resource_name}, which Kvasir sets from engine.resourceName")
    return pod


def _frontend(frontend: Json) -> FrontendSpec:
    return FrontendSpec(
        replicas=frontend.get("replicas", 1),
        api_keys=_secret_name(frontend, "apiKeys"),
        admin_api_keys=_secret_name(frontend, "adminApiKeys"),
        max_client_share=frontend.get("maxClientShare"),
        max_parsed_bytes=optional_size(frontend, "maxParsedBytes", "frontend"),
        tool_call_parser=frontend.get("toolCallParser"),
        reasoning_parser=frontend.get("reasoningParser"),
        drain_timeout=parsed(parse_duration, frontend, "drainTimeout", "frontend"),
        extra_args=tuple(frontend.get("extraArgs", ())),
        pod=parse_pod(frontend.get("pod", {}), "frontend.pod"),
        image=frontend.get("image"),
        is_autoscaled="replicas" not in frontend,
    )


def _secret_name(fields: Json, name: str) -> str | None:
    reference = fields.get(name)
    return reference["name"] if reference else None


def _rollout(rollout: Json) -> RolloutSpec:
    return RolloutSpec(
        max_surge=rollout["maxSurge"],
        max_unavailable=rollout["maxUnavailable"],
        drain_timeout=parsed(parse_duration, rollout, "drainTimeout", "rollout"),
        # An older schema, which an upgrade may replace later than the operator, lacks this field.
        surge_timeout=parsed(parse_duration, {"surgeTimeout": "30s", **rollout}, "surgeTimeout", "rollout"),
    )


def _network(network: Json) -> NetworkSpec:
    return NetworkSpec(
        policy=network["policy"],
        allow_from=tuple(network["allowFrom"]) if "allowFrom" in network else None,
        allow_metrics_from=tuple(network.get("allowMetricsFrom", ())),
    )
