"""The InferenceService as typed Python, after defaulting and validation by the schema in crds/.

Only this module reads the raw dictionary.
"""

from dataclasses import dataclass, field

from kvasir_contract.units import parse_duration
from kvasir_operator.autoscaling_spec import AutoscalingSpec, parse_autoscaling
from kvasir_operator.expose_spec import CERTIFICATE, ExposeSpec, parse_expose
from kvasir_operator.model_spec import ModelSpec, parse_model
from kvasir_operator.pod_spec import Json, PodSpec, parse_pod
from kvasir_operator.profiles import Profile
from kvasir_operator.spec_values import InvalidSpec, optional_size, parsed, secret_name


@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int
    memory_utilization: float  # share of the GPU, unless `memory` is set
    memory: int | None  # bytes


@dataclass(frozen=True)
class EngineSpec:
    data_parallel_size: int
    resource_name: str  # for each worker; "" for the CPU
    dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int | None
    kv_cache: KVCacheSpec
    extra_args: tuple[str, ...]
    pod: PodSpec
    # A field with a default changes the digest only of services that set it.
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nodes: int = 1  # pods per engine
    image: str | None = None

    @property
    def workers(self) -> int:
        # processes of an engine
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def workers_per_pod(self) -> int:
        return self.workers // self.nodes

    @property
    def pods(self) -> int:
        return self.data_parallel_size * self.nodes


@dataclass(frozen=True)
class FrontendSpec:
    replicas: int
    api_keys: str | None
    admin_api_keys: str | None  # a Secret, for control calls
    max_client_share: float | None  # of the requests in flight
    max_parsed_bytes: int | None  # for the bodies of all requests in flight
    tool_call_parser: str | None  # None: by the chat template
    reasoning_parser: str | None  # None: by the chat template
    drain_timeout: float  # seconds
    extra_args: tuple[str, ...]
    pod: PodSpec
    image: str | None = None
    is_autoscaled: bool = False  # no `replicas`: an autoscaler may scale the Deployment

    @property
    def serves_https(self) -> bool:
        # only extraArgs can set it
        return any(arg.partition("=")[0].replace("_", "-") == "--ssl-certfile" for arg in self.extra_args)

    @property
    def key_secrets(self) -> dict[str, str]:
        secrets = {"apiKeys": self.api_keys, "adminApiKeys": self.admin_api_keys}
        return {field: name for field, name in secrets.items() if name}


@dataclass(frozen=True)
class RolloutSpec:
    """The replacement of pods. At least one of the two numbers is positive."""

    max_surge: int  # engines in addition to the desired ones
    max_unavailable: int  # missing engines if additional ones have no room
    drain_timeout: float  # seconds for an engine's requests
    surge_timeout: float  # seconds to wait for a node


@dataclass(frozen=True)
class NetworkSpec:
    policy: bool
    allow_from: tuple[Json, ...] | None  # NetworkPolicy peers of the API; None: everyone
    allow_metrics_from: tuple[Json, ...]  # in addition to the operator


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
    paused: bool  # the operator only reports the status
    operator_class: str  # the installation that handles it
    autoscaling: AutoscalingSpec  # limits data_parallel_size
    image: str | None  # None: those of the operator's release
    image_pull_policy: str | None
    image_pull_secrets: tuple[str, ...]
    # of the InferenceService, for all its objects
    labels: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    default_pull_secrets: tuple[str, ...] = ()  # of the operator, for all services
    expose: ExposeSpec | None = None
    profile: str | None = None
    applied: Profile | None = None  # `profile`, or the default one
    written: "InferenceService | None" = None  # without the fields of `applied`

    @property
    def named_secrets(self) -> dict[str, str]:
        # by field; those that the service needs
        certificate = self.expose.tls_secret if self.expose is not None else None
        return self.frontend.key_secrets | ({CERTIFICATE: certificate} if certificate else {})


def parse_service(resource: Json) -> InferenceService:
    """Parse a defaulted InferenceService. Raises InvalidSpec."""
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
        model=parse_model(spec["model"], metadata["name"]),
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
        profile=spec.get("profile"),
        expose=parse_expose(spec.get("expose"), metadata.get("namespace", "default")),
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
        api_keys=secret_name(frontend, "apiKeys"),
        admin_api_keys=secret_name(frontend, "adminApiKeys"),
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


def _rollout(rollout: Json) -> RolloutSpec:
    return RolloutSpec(
        max_surge=rollout["maxSurge"],
        max_unavailable=rollout["maxUnavailable"],
        drain_timeout=parsed(parse_duration, rollout, "drainTimeout", "rollout"),
        # an older schema, possibly upgraded after the operator, lacks it
        surge_timeout=parsed(parse_duration, {"surgeTimeout": "30s", **rollout}, "surgeTimeout", "rollout"),
    )


def _network(network: Json) -> NetworkSpec:
    return NetworkSpec(
        policy=network["policy"],
        allow_from=tuple(network["allowFrom"]) if "allowFrom" in network else None,
        allow_metrics_from=tuple(network.get("allowMetricsFrom", ())),
    )
