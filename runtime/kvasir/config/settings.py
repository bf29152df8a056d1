"""Settings of engines, a frozen dataclass per concern.

None stands for `auto`. Names are those of `vllm serve` if the meaning is the same.
"""

import dataclasses
from dataclasses import dataclass

from kvasir.config.cuda_graphs import read_compilation_config
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.nodes import NodesConfig
from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import (
    parse_bool,
    parse_dtype,
    parse_fraction,
    parse_int,
    parse_json_object,
    parse_length,
    parse_switch,
    parse_task,
    parse_tokens,
)
from kvasir.config.process_settings import LinkConfig, OpsConfig, ProcessConfig
from kvasir.config.profiler import read_profiler_config
from kvasir.config.speculation import drafting_obstacle, read_speculative_config
from kvasir.request.hashing import BLAKE2B, HASH_ALGORITHMS
from kvasir_contract.endpoints import ANY_HOST, KV_HAND_OVER_PORT
from kvasir_contract.environment import POD_IP
from kvasir_contract.units import parse_bytes, parse_duration

TASKS = ("auto", "generate", "pool", "embed", "classify")
DTYPES = ("auto", "float32", "bfloat16", "float16")
# As in vLLM, fp8 is e4m3 too.
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3")
HAND_OVER_AUTO = "auto"
HAND_OVER_OFF = "off"


@dataclass(frozen=True)
class ModelConfig:
    source: str
    """As the user wrote it: hf://org/name[@revision], file:///path or demo://."""
    served_model_name: tuple[str, ...] = option(
        (), "names of the model in requests [default: the MODEL argument]", many=True, metavar="NAME"
    )
    max_model_len: int | None = option(
        None,
        "maximum tokens of prompt and output together, for example 32k (32000), 32K (32768) or auto [default: "
        "auto, from the model's config, and less if the KV cache holds less]",
        parse=parse_length,
        metavar="N",
    )
    download_dir: str | None = option(
        None, "directory for downloaded hf:// models [default: the Hugging Face cache]", metavar="DIR"
    )
    tokenizer: str | None = option(
        None,
        "model or directory with the tokenizer and the chat template [default: the model's own]",
        metavar="NAME",
    )
    hf_overrides: str = option(
        "{}",
        "JSON object whose fields replace those of config.json [default: none]",
        parse=parse_json_object,
        metavar="JSON",
    )
    quantization: str | None = option(
        None,
        "quantise the weights when they are loaded: int8, int4 or fp8; a checkpoint's own method, such as awq, is "
        "accepted too, and none makes floats of a GGUF file [default: as the checkpoint is]",
        metavar="METHOD",
        short="-q",
    )
    generation_config: str = option(
        "auto",
        "where defaults of sampling parameters come from: the model's generation_config.json (auto), another "
        "directory, or nowhere (vllm)",
        metavar="DIR",
    )
    override_generation_config: str = option(
        "{}",
        'JSON object whose fields replace those of generation_config.json, for example {"temperature": 0.5} '
        "[default: none]",
        parse=parse_json_object,
        metavar="JSON",
    )
    task: str = option(
        "auto",
        "what the model is served for: text (generate), vectors (embed), scores (classify), or vectors or scores, "
        "by its architecture (pool) [default: by the model's files]",
        choices=TASKS,
        parse=parse_task,
    )
    seed: int | None = option(
        None,
        "seed from which requests without a seed draw theirs, in the order of their arrival [default: random]",
        parse=parse_int(-(2**63), 2**63 - 1),
    )


@dataclass(frozen=True)
class DeviceConfig:
    device: str = option("auto", "device that computes the model", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "precision of weights and KV cache", choices=DTYPES, parse=parse_dtype)
    load_format: str = option(
        "auto",
        "where the weights come from: the model's safetensors files, or random numbers (dummy, for tests of speed "
        "and memory: only config.json and the tokenizer are read) [default: safetensors]",
        choices=("auto", "safetensors", "dummy"),
    )
    batch_invariant: str = option(
        "auto",
        "whether a request's log probabilities and tokens are the same bits whatever is computed with it, on CPU "
        "[default: on, but off in bfloat16 on a CPU with instructions for it]",
        choices=("auto", "on", "off"),
        parse=parse_switch,
    )
    threads: int | None = option(
        None,
        "CPU threads of this engine [default: OMP_NUM_THREADS; else the cgroup's cores divided by the ranks on "
        "this machine, fewer while other processes need them; 1 for a model of hidden size 256 or less]",
        parse=parse_int(1),
    )
    profiler_config: str = option(
        "{}",
        'JSON object for POST /start_profile, such as {"profiler": "torch", "torch_profiler_dir": "/tmp/traces"} '
        "[default: no profiles]",
        parse=parse_json_object,
        metavar="JSON",
    )

    enforce_eager: bool = option(
        False, "launch each kernel of a step by itself, without CUDA graphs, on a GPU", parse=parse_bool
    )
    compilation_config: str = option(
        "{}",
        'JSON object with the sizes of the CUDA graphs on a GPU, such as {"cudagraph_capture_sizes": [1, 8, 64]} '
        "[default: sizes up to --max-num-seqs, 512 at most]",
        parse=parse_json_object,
        metavar="JSON",
    )

    def __post_init__(self) -> None:
        read_profiler_config(self.profiler_config)
        read_compilation_config(self.compilation_config)


@dataclass(frozen=True)
class CacheConfig:
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
    kv_cache_dtype: str = option(
        "auto",
        "precision of the KV cache: that of --dtype (auto), or 8 bits with the scales of the checkpoint (fp8 and "
        "fp8_e4m3 are the same), which needs an NVIDIA GPU of compute capability 8.9",
        choices=KV_CACHE_DTYPES,
    )
    enable_prefix_caching: bool = option(
        True, "keep KV blocks of finished requests, and reuse them for prompts that begin with the same tokens"
    )
    prefix_caching_hash_algo: str = option(
        BLAKE2B, "hash of the blocks in the prefix cache", choices=HASH_ALGORITHMS
    )
    kv_hand_over: str = option(
        HAND_OVER_AUTO,
        "address at which other engines fetch KV blocks of requests that move to them, for example "
        f"tcp://10.0.0.1:{KV_HAND_OVER_PORT}; auto: port {KV_HAND_OVER_PORT} of {POD_IP} if that is set, or next "
        "to a link on this machine, otherwise none; off: blocks are neither sent nor fetched",
        metavar="ADDRESS",
    )
    num_gpu_blocks_override: int | None = option(
        None, "number of KV blocks to allocate, regardless of the memory (for tests)", parse=parse_int(1)
    )


@dataclass(frozen=True)
class SchedulerConfig:
    max_num_seqs: int | None = option(
        None, "maximum requests in a step [default: 256; 64 on CPU]", parse=parse_int(1, 65536)
    )
    max_num_batched_tokens: int | None = option(
        None,
        "maximum tokens in a step, including prefill chunks [default: 8192; 2048 on CPU]",
        parse=parse_tokens(),
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
        "maximum tokens of all requests that wait in this engine; further ones wait in the frontend's queue",
        parse=parse_tokens(),
    )
    async_scheduling: bool | None = option(
        None, "schedule a step while the device computes the previous one [default: on a GPU]", parse=parse_bool
    )
    speculative_config: str = option(
        "{}",
        'JSON object that has several tokens guessed and checked in one step, such as {"method": "ngram"} or '
        '{"method": "suffix", "num_speculative_tokens": 8}; outputs stay the same [default: one token in a step]',
        parse=parse_json_object,
        metavar="JSON",
        short="-sc",
    )

    def __post_init__(self) -> None:
        if self.max_num_seqs and self.max_num_batched_tokens and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs "
                f"{self.max_num_seqs}: each running request needs one token per step"
            )
        read_speculative_config(self.speculative_config)


@dataclass(frozen=True)
class ParallelConfig:
    """The place of an engine among the service's ranks."""

    data_parallel_rank: int = option(0, "this engine's rank", parse=parse_int(0))
    data_parallel_size_local: int = option(
        1, "ranks on this machine, which share its CPU cores and memory", parse=parse_int(1)
    )
    data_parallel_size: int = option(
        1,
        "with --enable-expert-parallel: engines that share the experts of a mixture, each with an equal part",
        parse=parse_int(1, 1024),
    )
    data_parallel_address: str = option(
        "127.0.0.1", "address of rank 0, at which engines that share experts meet", metavar="HOST"
    )
    data_parallel_rpc_port: int = option(
        29550, "port of rank 0, at which engines that share experts meet", parse=parse_int(1, 65535)
    )

    def __post_init__(self) -> None:
        if self.data_parallel_size > 1 and self.data_parallel_rank >= self.data_parallel_size:
            raise ConfigError(
                f"--data-parallel-rank {self.data_parallel_rank} is not below --data-parallel-size "
                f"{self.data_parallel_size}: ranks count from 0"
            )
        if self.data_parallel_address in ("0.0.0.0", "::", ANY_HOST):
            raise ConfigError(
                f"--data-parallel-address {self.data_parallel_address} leads each engine to its own machine: give "
                "the address of rank 0 that the other engines can reach"
            )


@dataclass(frozen=True)
class TraceConfig:
    slow_step: float = option(
        30.0,
        "log phase and batch of a step that takes longer than this; 0 logs none",
        parse=parse_duration,
        metavar="TIME",
    )
    black_box: str | None = option(
        None,
        "file that names the requests of the running step; a later start with the same file reports them if this "
        "process is killed [default: none]",
        metavar="FILE",
    )


@dataclass(frozen=True)
class EngineConfig:
    model: ModelConfig
    device: DeviceConfig = dataclasses.field(default_factory=DeviceConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    executor: ExecutorConfig = dataclasses.field(default_factory=ExecutorConfig)
    nodes: NodesConfig = dataclasses.field(default_factory=NodesConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    lora: LoRAConfig = dataclasses.field(default_factory=LoRAConfig)
    trace: TraceConfig = dataclasses.field(default_factory=TraceConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)

    @property
    def shares_experts(self) -> bool:
        return self.parallel.data_parallel_size > 1 and self.executor.enable_expert_parallel

    def drafting_obstacle(self, pools: bool) -> str:
        return drafting_obstacle(pools, self.executor.pipeline_parallel_size, self.shares_experts)

    def __post_init__(self) -> None:
        self.executor.check_experts(self.parallel.data_parallel_size)
