"""What a user can set, one frozen dataclass per concern; None is auto. See options.py for how they are read.

Names and meanings are those of `vllm serve` wherever the meaning is the same.
"""

import dataclasses
import re
from dataclasses import dataclass

from kvasir.config.options import (
    ConfigError,
    option,
    parse_fraction,
    parse_int,
)
from kvasir_contract.endpoints import ANY_HOST, HTTP_PORT, OPS_PORT
from kvasir_contract.units import parse_bytes, parse_duration

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelConfig:
    """Which model; the same for frontends and engines."""

    source: str
    """hf://org/name[@revision], file:///path, demo://; as given, not yet normalised."""
    served_model_name: tuple[str, ...] = option(
        (), "names that requests may use for the model [default: the model as given]", many=True, metavar="NAME"
    )
    max_model_len: int | None = option(
        None, "tokens of prompt and output together [default: from the model's config]", parse=parse_int(1)
    )
    download_dir: str | None = option(
        None, "where hf:// models are kept [default: the Hugging Face cache]", metavar="DIR"
    )


@dataclass(frozen=True)
class DeviceConfig:
    """Where and in which precision an engine computes."""

    device: str = option("auto", "device of the model", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "precision of weights and KV cache", choices=DTYPES)
    threads: int | None = option(
        None,
        "CPU threads of this engine [default: OMP_NUM_THREADS; else the cgroup's cores, shared among the ranks of "
        "this machine, fewer while other processes need them; 1 for a model of hidden size 256 or less]",
        parse=parse_int(1),
    )


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = option(16, "tokens per KV block", parse=parse_int(1, 1024))
    kv_cache_memory_bytes: int | None = option(
        None,
        "memory of the KV cache, for example 2Gi [default: 1Gi on CPU; on a GPU what profiling finds free]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    gpu_memory_utilization: float = option(
        0.9, "share of the GPU's memory to use, weights included", parse=parse_fraction, metavar="SHARE"
    )
    enable_prefix_caching: bool = option(
        True, "keep the KV blocks of finished requests, for prompts that begin with the same tokens"
    )
    num_gpu_blocks_override: int | None = option(
        None, "KV blocks to allocate, whatever the memory (for tests)", parse=parse_int(1)
    )


@dataclass(frozen=True)
class SchedulerConfig:
    """How many requests and tokens go into a step."""

    max_num_seqs: int | None = option(
        None, "requests in a step at most [default: 256; 64 on CPU]", parse=parse_int(1, 65536)
    )
    max_num_batched_tokens: int | None = option(
        None, "tokens in a step at most, prefill chunks included [default: 8192; 2048 on CPU]", parse=parse_int(1)
    )
    long_prefill_token_threshold: int | None = option(
        None,
        "tokens of one prompt in a step at most, while other requests are there [default: as many as fit]",
        parse=parse_int(1),
    )
    scheduling_policy: str = option(
        "fcfs",
        "who is served first: who came first, or whose priority is smallest",
        choices=("fcfs", "priority"),
    )
    async_scheduling: bool = option(False, "schedule each step while the one before it is computed")

    def __post_init__(self) -> None:
        if self.max_num_seqs and self.max_num_batched_tokens and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs "
                f"{self.max_num_seqs}: each running request needs one token per step"
            )


@dataclass(frozen=True)
class ParallelConfig:
    """This engine's place among the service's ranks."""

    data_parallel_rank: int = option(0, "this engine's rank", parse=parse_int(0))
    data_parallel_size_local: int = option(
        1, "ranks on this machine: they share its CPU cores and its memory", parse=parse_int(1)
    )


@dataclass(frozen=True)
class LinkConfig:
    """The link between frontends and engines."""

    link: tuple[str, ...] = option(
        (),
        "link addresses, ipc:///path or tcp://host:port: a frontend binds one, an engine connects to each",
        many=True,
        metavar="ADDRESS",
    )
    link_keys: str | None = option(
        None, "directory with this side's CURVE keys; needed for tcp:// beyond loopback", metavar="DIR"
    )
    service_uid: str = option("", "UID of the InferenceService; engines of another are refused", metavar="UID")
    heartbeat_timeout: float = option(
        10.0, "a peer silent for this long is lost", parse=parse_duration, metavar="TIME"
    )

    def __post_init__(self) -> None:
        if self.heartbeat_timeout <= 0:
            raise ConfigError(
                f"--heartbeat-timeout {self.heartbeat_timeout:g}: every peer would be lost at once; heartbeats "
                "come each second, so give 3s or more"
            )


@dataclass(frozen=True)
class OpsConfig:
    """A small HTTP port of every process, for probes and metrics."""

    ops_host: str = option("127.0.0.1", f"address of the probes and metrics; {ANY_HOST} for all", metavar="HOST")
    ops_port: int | None = option(
        None,
        f"port of the probes and metrics; 0 takes any free one [default: {OPS_PORT} for an engine; none for a "
        "frontend, whose API answers probes too]",
        parse=parse_int(0, 65535),
    )


@dataclass(frozen=True)
class TraceConfig:
    """What an engine logs of its steps."""

    slow_step: float = option(
        30.0,
        "log phase and batch of a step that takes longer than this; 0: of none",
        parse=parse_duration,
        metavar="TIME",
    )


@dataclass(frozen=True)
class ServerConfig:
    """A frontend's HTTP server."""

    host: str = option("127.0.0.1", f"address to listen on; {ANY_HOST} for all, IPv4 and IPv6", metavar="HOST")
    port: int = option(HTTP_PORT, "port to listen on; 0 takes any free one", parse=parse_int(0, 65535))
    fd: int | None = option(
        None, "serve on this inherited, already bound socket instead of host and port", parse=parse_int(0)
    )
    api_key: tuple[str, ...] = option(
        (),
        "keys that clients must send as bearer tokens [default: none needed]",
        many=True,
        metavar="KEY",
        never_blank=True,
    )
    api_key_dir: str | None = option(
        None, "directory whose files each hold an accepted key (a mounted Secret)", metavar="DIR", never_blank=True
    )
    max_request_bytes: int = option(
        32 * 2**20, "largest request body [default: 32Mi]", parse=parse_bytes, metavar="SIZE"
    )
    max_upload_bytes: int | None = option(
        None,
        "request bodies that are being received, together; more are answered with 429 [default: 16 of the largest]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    max_live_requests: int = option(
        4096, "requests in flight at most; more are answered with 429", parse=parse_int(1)
    )
    upload_timeout: float = option(
        60.0, "time for a request to arrive, its head and its body each", parse=parse_duration, metavar="TIME"
    )
    stalled_reader_timeout: float = option(
        60.0,
        "a client that takes nothing of its answer for this long is cut off",
        parse=parse_duration,
        metavar="TIME",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "origins whose web pages may call the API, * for all (CORS) [default: none]",
        many=True,
        metavar="ORIGIN",
    )
    allowed_methods: tuple[str, ...] = option(
        ("GET", "HEAD", "POST"), "methods these pages may use [default: GET HEAD POST]", many=True, metavar="METHOD"
    )
    allowed_headers: tuple[str, ...] = option(
        ("*",), "request headers these pages may send [default: all]", many=True, metavar="HEADER"
    )
    allow_credentials: bool = option(False, "these pages may send cookies and HTTP authentication")
    log_requests: bool = option(True, "write a log line at the end of each request, probes apart")
    shutdown_delay: float = option(
        0.0,
        "on SIGTERM, go on accepting for this long while endpoints settle",
        parse=parse_duration,
        metavar="TIME",
    )

    @property
    def upload_bytes(self) -> int:
        """`max_upload_bytes`, where it is left open too."""
        return 16 * self.max_request_bytes if self.max_upload_bytes is None else self.max_upload_bytes

    def __post_init__(self) -> None:
        if self.max_request_bytes < 1:
            raise ConfigError(
                f"--max-request-bytes {self.max_request_bytes}: no request would fit; give 1Mi or more"
            )
        if self.upload_bytes < self.max_request_bytes:
            raise ConfigError(
                f"--max-upload-bytes {self.upload_bytes} is below --max-request-bytes {self.max_request_bytes}: a "
                "body of that size could never be received; give it once or several times"
            )
        for name in ("upload_timeout", "stalled_reader_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')} 0: every client would be cut off; give 10s or more")
        self._check_origins()
        self._check_keys()

    def _check_keys(self) -> None:
        """A variable that is not set must not take the lock off the door."""
        if not all(key.strip() for key in self.api_key):
            raise ConfigError("--api-key: a key is empty (is the variable set?)")
        if self.api_key_dir is not None and not self.api_key_dir.strip():
            raise ConfigError("--api-key-dir: the directory's name is empty (is the variable set?)")

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(
                    f"--allowed-origins {origin}: an origin is a scheme, a host and maybe a port, for example "
                    "https://chat.example.org:8443, without a path or a slash at the end; * is all of them"
                )
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "--allow-credentials with --allowed-origins *: any web page could act as its visitor; name origins"
            )
        if self.allow_credentials and not self.allowed_origins:
            raise ConfigError("--allow-credentials without --allowed-origins does nothing: name the origins")


@dataclass(frozen=True)
class ProcessConfig:
    """What every process has."""

    drain_timeout: float = option(
        60.0, "on SIGTERM, time for running requests to finish", parse=parse_duration, metavar="TIME"
    )
    log_level: str = option("info", "least level to log", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "format of log lines", choices=("text", "json"))


@dataclass(frozen=True)
class EngineConfig:
    """Everything `kvasir engine` was given."""

    model: ModelConfig
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    trace: TraceConfig = dataclasses.field(default_factory=TraceConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)


@dataclass(frozen=True)
class FrontendConfig:
    """Everything `kvasir frontend` was given."""

    model: ModelConfig
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)
