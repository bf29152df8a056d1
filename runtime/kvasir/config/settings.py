"""All settings of frontends and engines, one frozen dataclass per concern; options.py reads them.

None stands for `auto` and is resolved later. Names are those of `vllm serve` if the meaning is the same.
"""

import dataclasses
import re
from dataclasses import dataclass

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_fraction, parse_int
from kvasir.hashing import BLAKE2B, HASH_ALGORITHMS
from kvasir_contract.endpoints import ANY_HOST, HTTP_PORT, OPS_PORT
from kvasir_contract.units import parse_bytes, parse_duration

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelConfig:
    """The model to serve; the same for frontends and engines."""

    source: str
    """hf://org/name[@revision], file:///path, demo://; as the user wrote it, not normalised."""
    served_model_name: tuple[str, ...] = option(
        (), "names of the model in requests [default: the MODEL argument]", many=True, metavar="NAME"
    )
    max_model_len: int | None = option(
        None, "maximum tokens of prompt and output together [default: from the model's config]", parse=parse_int(1)
    )
    download_dir: str | None = option(
        None, "directory for downloaded hf:// models [default: the Hugging Face cache]", metavar="DIR"
    )


@dataclass(frozen=True)
class DeviceConfig:
    """Device, precision, weights and threads of an engine."""

    device: str = option("auto", "device that computes the model", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "precision of weights and KV cache", choices=DTYPES)
    load_format: str = option(
        "auto",
        "where the weights come from: the model's safetensors files, or random numbers (dummy, for tests of speed "
        "and memory: only config.json and the tokenizer are read) [default: safetensors]",
        choices=("auto", "safetensors", "dummy"),
    )
    threads: int | None = option(
        None,
        "CPU threads of this engine [default: OMP_NUM_THREADS; else the cgroup's cores divided by the ranks on "
        "this machine, fewer while other processes need them; 1 for a model of hidden size 256 or less]",
        parse=parse_int(1),
    )


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = option(16, "tokens per KV block", parse=parse_int(1, 1024))
    kv_cache_memory_bytes: int | None = option(
        None,
        "memory of the KV cache of each worker, for example 2Gi [default: 1Gi on CPU; on a GPU the free memory]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    gpu_memory_utilization: float = option(
        0.9, "share of the GPU's memory to use, including weights", parse=parse_fraction, metavar="SHARE"
    )
    enable_prefix_caching: bool = option(
        True, "keep KV blocks of finished requests, and reuse them for prompts that begin with the same tokens"
    )
    prefix_caching_hash_algo: str = option(
        BLAKE2B, "hash of the blocks in the prefix cache", choices=HASH_ALGORITHMS
    )
    num_gpu_blocks_override: int | None = option(
        None, "number of KV blocks to allocate, regardless of the memory (for tests)", parse=parse_int(1)
    )


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, and the order of requests."""

    max_num_seqs: int | None = option(
        None, "maximum requests in a step [default: 256; 64 on CPU]", parse=parse_int(1, 65536)
    )
    max_num_batched_tokens: int | None = option(
        None, "maximum tokens in a step, including prefill chunks [default: 8192; 2048 on CPU]", parse=parse_int(1)
    )
    long_prefill_token_threshold: int | None = option(
        None,
        "maximum tokens of one prompt in a step while there are other requests [default: as many as fit]",
        parse=parse_int(1),
    )
    scheduling_policy: str = option(
        "fcfs",
        "order of requests: by arrival (fcfs), or by their priority field, smallest first",
        choices=("fcfs", "priority"),
    )
    max_queued_tokens: int = option(
        2**26,
        "maximum tokens of all requests that wait in this engine; further ones get status 429",
        parse=parse_int(1),
    )
    async_scheduling: bool = option(False, "schedule a step while the device computes the previous one")

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
        1, "ranks on this machine, which share its CPU cores and memory", parse=parse_int(1)
    )


@dataclass(frozen=True)
class ExecutorConfig:
    """The workers of an engine and their processes."""

    tensor_parallel_size: int = option(
        1,
        "worker processes of an engine that each hold a part of every layer of the model (on CPUs only)",
        parse=parse_int(1, 1024),
        short="-tp",
    )
    enable_expert_parallel: bool = option(
        False, "each of several workers holds whole experts of a mixture instead of a part of every expert"
    )
    distributed_executor_backend: str | None = option(
        None,
        "process of the workers: the engine's own (uni), or one for each worker (mp) [default: uni for one worker]",
        choices=("uni", "mp"),
    )
    worker_timeout: float = option(
        120.0,
        "end the engine if a worker process is stopped, or has not finished a step, for this long",
        parse=parse_duration,
        metavar="TIME",
    )
    worker_cls: str | None = option(
        None,
        "entry point of the worker's class, in the group kvasir.workers [default: Kvasir's own]",
        metavar="NAME",
    )
    worker_extension_cls: str | None = option(
        None,
        "entry point of a class with further worker calls, in the group kvasir.worker_extensions [default: none]",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        if self.worker_timeout <= 0:
            raise ConfigError("--worker-timeout 0: every step would end the engine; give 10s or more")
        if self.tensor_parallel_size > 1 and self.distributed_executor_backend == "uni":
            raise ConfigError(
                f"--distributed-executor-backend uni has one worker, and --tensor-parallel-size "
                f"{self.tensor_parallel_size} needs {self.tensor_parallel_size}: choose mp, or leave it out"
            )
        if self.enable_expert_parallel and self.tensor_parallel_size == 1:
            raise ConfigError(
                "--enable-expert-parallel has no effect with one worker: give --tensor-parallel-size 2 or more"
            )


@dataclass(frozen=True)
class LinkConfig:
    """The link between frontends and engines."""

    link: tuple[str, ...] = option(
        (),
        "link addresses, ipc:///path or tcp://host:port; a frontend binds one, an engine connects to all",
        many=True,
        metavar="ADDRESS",
    )
    link_keys: str | None = option(
        None, "directory with the CURVE keys of this side; required for tcp:// except on loopback", metavar="DIR"
    )
    service_uid: str = option(
        "", "UID of the InferenceService; a frontend rejects engines with another UID", metavar="UID"
    )
    heartbeat_timeout: float = option(
        10.0, "treat a peer as lost after this time without a message", parse=parse_duration, metavar="TIME"
    )

    def __post_init__(self) -> None:
        if self.heartbeat_timeout <= 0:
            raise ConfigError(
                f"--heartbeat-timeout {self.heartbeat_timeout:g}: every peer would be lost immediately; heartbeats "
                "are sent every second, so give 3s or more"
            )


@dataclass(frozen=True)
class OpsConfig:
    """The HTTP port for probes and metrics that every process can have."""

    ops_host: str = option(
        "127.0.0.1", f"address for probes and metrics; {ANY_HOST} for all addresses", metavar="HOST"
    )
    ops_port: int | None = option(
        None,
        f"port for probes and metrics; 0 chooses a free one [default: {OPS_PORT} for an engine; none for a "
        "frontend, whose API port answers probes too]",
        parse=parse_int(0, 65535),
    )


@dataclass(frozen=True)
class TraceConfig:
    """Logging of an engine's slow steps."""

    slow_step: float = option(
        30.0,
        "log phase and batch of a step that takes longer than this; 0 logs none",
        parse=parse_duration,
        metavar="TIME",
    )


@dataclass(frozen=True)
class ServerConfig:
    """A frontend's HTTP server."""

    host: str = option(
        "127.0.0.1", f"address to listen on; {ANY_HOST} for all addresses, IPv4 and IPv6", metavar="HOST"
    )
    port: int = option(HTTP_PORT, "port to listen on; 0 chooses a free one", parse=parse_int(0, 65535))
    fd: int | None = option(
        None, "file descriptor of an inherited, bound socket to use instead of host and port", parse=parse_int(0)
    )
    api_key: tuple[str, ...] = option(
        (),
        "API keys; clients must send one as bearer token [default: no key required]",
        many=True,
        metavar="KEY",
        never_blank=True,
    )
    api_key_dir: str | None = option(
        None, "directory (a mounted Secret) with one API key per file", metavar="DIR", never_blank=True
    )
    max_request_bytes: int = option(
        32 * 2**20, "maximum size of a request body [default: 32Mi]", parse=parse_bytes, metavar="SIZE"
    )
    max_upload_bytes: int | None = option(
        None,
        "maximum size of all incomplete request bodies together, else status 429 [default: 16 × max-request-bytes]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    max_live_requests: int = option(
        4096, "maximum requests in flight; further ones get status 429", parse=parse_int(1)
    )
    max_live_tokens: int = option(
        2**26,
        "maximum tokens of the requests in flight, prompts and outputs so far; further requests get status 429",
        parse=parse_int(1),
    )
    upload_timeout: float = option(
        60.0,
        "time limit for receiving the headers of a request, and for its body",
        parse=parse_duration,
        metavar="TIME",
    )
    stalled_reader_timeout: float = option(
        60.0,
        "disconnect a client that reads nothing of its answer for this long",
        parse=parse_duration,
        metavar="TIME",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "origins whose web pages may call the API (CORS), * for all [default: none]",
        many=True,
        metavar="ORIGIN",
    )
    allowed_methods: tuple[str, ...] = option(
        ("GET", "HEAD", "POST"),
        "methods that these pages may use [default: GET HEAD POST]",
        many=True,
        metavar="METHOD",
    )
    allowed_headers: tuple[str, ...] = option(
        ("*",), "request headers that these pages may send [default: all]", many=True, metavar="HEADER"
    )
    allow_credentials: bool = option(False, "let these pages send cookies and HTTP authentication")
    log_requests: bool = option(True, "log a line at the end of each request, except probes")
    shutdown_delay: float = option(
        0.0,
        "on SIGTERM, accept requests for this time, until load balancers have removed this server",
        parse=parse_duration,
        metavar="TIME",
    )

    @property
    def upload_bytes(self) -> int:
        """Return `max_upload_bytes`, or its default."""
        return 16 * self.max_request_bytes if self.max_upload_bytes is None else self.max_upload_bytes

    def __post_init__(self) -> None:
        if self.max_request_bytes < 1:
            raise ConfigError(
                f"--max-request-bytes {self.max_request_bytes}: no request could be accepted; give 1Mi or more"
            )
        if self.upload_bytes < self.max_request_bytes:
            raise ConfigError(
                f"--max-upload-bytes {self.upload_bytes} is below --max-request-bytes {self.max_request_bytes}: "
                "the largest body could never be received; give a multiple of --max-request-bytes"
            )
        for name in ("upload_timeout", "stalled_reader_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} 0: every client would be disconnected; give 10s or more"
                )
        self._check_origins()
        self._check_keys()

    def _check_keys(self) -> None:
        """Reject empty keys: an unset shell variable must not disable authentication."""
        if not all(key.strip() for key in self.api_key):
            raise ConfigError("--api-key: a key is empty; check the variable that it comes from")
        if self.api_key_dir is not None and not self.api_key_dir.strip():
            raise ConfigError("--api-key-dir: the directory's name is empty; check the variable that it comes from")

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(
                    f"--allowed-origins {origin}: an origin is a scheme, a host and an optional port, for example "
                    "https://chat.example.org:8443, without a path or a slash at the end; * allows all"
                )
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "--allow-credentials with --allowed-origins *: any web page could act as its visitor; name origins"
            )
        if self.allow_credentials and not self.allowed_origins:
            raise ConfigError("--allow-credentials has no effect without --allowed-origins: name the origins")


@dataclass(frozen=True)
class ProcessConfig:
    """Settings that every process has."""

    drain_timeout: float = option(
        60.0, "time on SIGTERM for running requests to finish", parse=parse_duration, metavar="TIME"
    )
    log_level: str = option("info", "lowest level to log", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "format of log lines", choices=("text", "json"))


@dataclass(frozen=True)
class EngineConfig:
    """All settings of `kvasir engine`."""

    model: ModelConfig
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    executor: ExecutorConfig = dataclasses.field(default_factory=ExecutorConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    trace: TraceConfig = dataclasses.field(default_factory=TraceConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)


@dataclass(frozen=True)
class FrontendConfig:
    """All settings of `kvasir frontend`."""

    model: ModelConfig
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)
