"""Turn each `auto` of an engine's settings into a value, once, before anything is allocated."""

import dataclasses
from dataclasses import dataclass

from kvasir.config.cuda_graphs import CompilationConfig, ignored_fields, read_compilation_config
from kvasir.config.executor_settings import EXTERNAL_LAUNCHER, ExecutorConfig
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.lora_settings import LoRAConfig
from kvasir.config.options import ConfigError
from kvasir.config.profiler import ProfilerConfig, read_profiler_config
from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig
from kvasir.config.speculation import Speculation, read_speculative_config, speculation_without_effect

CPU_KV_CACHE_BYTES = 2**30
# The oldest NVIDIA GPUs with instructions that convert to and from float8_e4m3fn.
FP8_CAPABILITY = (8, 9)
# Operations of a model with hidden states up to this size take microseconds: threads that share them wait for
# longer, and take the core that frontend and clients need.
ONE_THREAD_WIDTH = 256


@dataclass(frozen=True)
class ModelFacts:
    """The part of config.json that settings depend on."""

    dtype: str
    """float32, bfloat16 or float16, of the checkpoint."""
    max_model_len: int
    width: int | None
    """Size of the hidden states; None: not known."""
    pools: bool = False
    """It makes vectors or scores of whole prompts."""


@dataclass(frozen=True)
class ResolvedEngine:
    """Settings of an engine without any `auto`."""

    device: str
    """cpu or cuda; cuda:0 for a worker in a process of its own."""
    dtype: str
    load_format: str
    """safetensors or dummy."""
    batch_invariant: bool
    """The logits of a request have the same bits whatever else is in the step."""
    threads: int
    yield_threads: bool
    """Compute with fewer threads while other processes need the cores."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int | None
    """None: no bound but the step's."""
    scheduling_policy: str
    max_queued_tokens: int
    async_scheduling: bool
    block_size: int
    enable_prefix_caching: bool
    prefix_caching_hash_algo: str
    kv_cache_memory_bytes: int | None
    """None: profile the GPU."""
    gpu_memory_utilization: float
    num_blocks: int | None
    """None: from the memory."""
    data_parallel_rank: int
    data_parallel_size_local: int
    """Ranks that share this machine's memory."""
    executor: ExecutorConfig
    fp8_kv_cache: bool = False
    """K and V are stored in float8_e4m3fn instead of the dtype."""
    graph_sizes: tuple[int, ...] = ()
    """Rows of the steps that CUDA graphs are captured for, ascending."""
    profiler: ProfilerConfig | None = None
    speculation: Speculation | None = None
    gpu_name: str = ""
    """"" on a CPU."""
    lora: LoRAConfig | None = None
    """None: requests for adapters are rejected."""
    download_dir: str | None = None
    """The cache of adapters; None: that of Hugging Face."""

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self))


def resolve_engine(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> ResolvedEngine:
    """Return the settings for a model on a machine. Raises ConfigError for a contradiction."""
    on_cpu = device.kind == "cpu"
    check_context(config.model.max_model_len, model.max_model_len)
    config.lora.check(model.pools, config.nodes.nnodes, config.executor.distributed_executor_backend)
    if config.executor.num_workers > 1 and not on_cpu:
        _check_gpus(config, device.gpus)
    if config.executor.pipeline_parallel_size > 1 and config.scheduler.async_scheduling:
        raise ConfigError(
            f"--async-scheduling has no effect with --pipeline-parallel-size "
            f"{config.executor.pipeline_parallel_size}, whose steps overlap without it: leave it out"
        )
    max_model_len = config.model.max_model_len or model.max_model_len
    asked_threads = config.device.threads or device.openmp_threads
    threads = asked_threads or _threads(config, model, device)
    max_num_seqs = config.scheduler.max_num_seqs
    max_num_batched_tokens = config.scheduler.max_num_batched_tokens
    if max_num_batched_tokens is None:
        max_num_batched_tokens = max(2048 if on_cpu else 8192, max_num_seqs or 0)
    if max_num_seqs is None:
        max_num_seqs = min(64 if on_cpu else 256, max_num_batched_tokens)
    dtype = _dtype(config.device.dtype, model.dtype, device)
    if model.pools:
        max_num_batched_tokens = _tokens_of_whole_prompts(config, max_model_len, max_num_batched_tokens)
    return ResolvedEngine(
        device=device.kind,
        dtype=dtype,
        load_format="safetensors" if config.device.load_format == "auto" else config.device.load_format,
        batch_invariant=_batch_invariant(config.device.batch_invariant, dtype, device),
        threads=threads,
        yield_threads=on_cpu and asked_threads is None and threads > 1,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=None if model.pools else config.scheduler.long_prefill_token_threshold,
        scheduling_policy=config.scheduler.scheduling_policy,
        max_queued_tokens=config.scheduler.max_queued_tokens,
        async_scheduling=_async_scheduling(config, on_cpu),
        block_size=config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching and not model.pools,
        prefix_caching_hash_algo=config.cache.prefix_caching_hash_algo,
        kv_cache_memory_bytes=None if model.pools else _kv_cache_memory(config, device),
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
        num_blocks=config.cache.num_gpu_blocks_override,
        data_parallel_rank=config.parallel.data_parallel_rank,
        data_parallel_size_local=config.parallel.data_parallel_size_local,
        executor=config.executor,
        fp8_kv_cache=_fp8_kv_cache(config.cache.kv_cache_dtype, device),
        graph_sizes=_graph_sizes(config, max_num_seqs, on_cpu or model.pools),
        profiler=read_profiler_config(config.device.profiler_config),
        speculation=_speculation(config, model, on_cpu),
        gpu_name="" if on_cpu else device.name,
        lora=config.lora if config.lora.enable_lora else None,
        download_dir=config.model.download_dir,
    )


def without_effect(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> list[str]:
    """Return a sentence for each option that is ignored with this model on this device."""
    sentences = []
    if device.kind == "cpu":
        if config.device.dtype == "float16":
            sentences.append(f"--dtype float16 is for GPUs: this CPU computes in {_half_on_cpu(device)}")
        if config.cache.gpu_memory_utilization != CacheConfig.gpu_memory_utilization:
            sentences.append(
                "--gpu-memory-utilization has no effect on a CPU: --kv-cache-memory-bytes is the KV cache's memory"
            )
        if config.device.enforce_eager or config.device.compilation_config != DeviceConfig.compilation_config:
            sentences.append(
                "--enforce-eager and --compilation-config have no effect on a CPU, which has no CUDA graphs"
            )
    if fields := ignored_fields(config.device.compilation_config):
        have = "has" if len(fields) == 1 else "have"
        known = ", ".join(CompilationConfig.__struct_fields__)
        sentences.append(f"--compilation-config: {', '.join(fields)} {have} no effect. There are {known}")
    obstacle = config.drafting_obstacle(model.pools)
    return sentences + speculation_without_effect(config.scheduler.speculative_config, obstacle)


def check_context(asked: int | None, positions: int) -> None:
    """Raise ConfigError for a --max-model-len that the model has no positions for."""
    if asked is not None and asked > positions:
        raise ConfigError(
            f"--max-model-len {asked} is more than the model's own {positions} positions: lower it, or extend them "
            """with --hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": F, """
            f""""original_max_position_embeddings": {positions}}}}}' if the model was made for that"""
        )


def _check_gpus(config: EngineConfig, gpus: int) -> None:
    executor = config.executor
    unsupported = {
        f"--pipeline-parallel-size {executor.pipeline_parallel_size}": executor.pipeline_parallel_size > 1,
        f"--nnodes {config.nodes.nnodes}": config.nodes.nnodes > 1,
        f"--tensor-parallel-size {executor.tensor_parallel_size} with --distributed-executor-backend "
        f"{EXTERNAL_LAUNCHER}": executor.distributed_executor_backend == EXTERNAL_LAUNCHER,
    }
    for options, given in unsupported.items():
        if given:
            raise ConfigError(f"{options} is supported on CPUs only: give --device cpu too, or leave it out")
    if (ranks := executor.tensor_parallel_size) > gpus:
        raise ConfigError(
            f"--tensor-parallel-size {ranks} needs {ranks} GPUs and torch finds {gpus}: lower it, or give the "
            "engine more GPUs (CUDA_VISIBLE_DEVICES, the resources of its pod)"
        )


def _threads(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> int:
    if model.width is not None and model.width <= ONE_THREAD_WIDTH:
        return 1
    return max(1, device.cores // config.parallel.data_parallel_size_local)


def _dtype(asked: str, of_model: str, device: DeviceFacts) -> str:
    wanted = of_model if asked == "auto" else asked
    if device.kind != "cpu" or wanted == "float32" or asked == "bfloat16":
        return wanted
    return _half_on_cpu(device)


def _half_on_cpu(device: DeviceFacts) -> str:
    # float16 has no fast products on a CPU.
    return "bfloat16" if device.fast_bfloat16 else "float32"


def _batch_invariant(asked: str, dtype: str, device: DeviceFacts) -> bool:
    # On by default only if it is cheap: oneDNN is several times faster with instructions for bfloat16.
    if device.kind != "cpu":
        if asked == "on":
            raise ConfigError("--batch-invariant on is supported on CPUs only: leave it out, or give --device cpu")
        return False
    if asked == "auto":
        return dtype == "float32" or not device.fast_bfloat16
    return asked == "on"


def _fp8_kv_cache(asked: str, device: DeviceFacts) -> bool:
    # Kernels that convert from and to e4m3 compile for NVIDIA GPUs only.
    if asked == "auto":
        return False
    capability = device.compute_capability
    if device.kind == "cpu":
        problem = "this engine computes on a CPU"
    elif capability is None:
        problem = f"{device.name} is not an NVIDIA GPU"
    elif capability < FP8_CAPABILITY:
        problem = f"{device.name} has compute capability {'.'.join(map(str, capability))}"
    else:
        return True
    needed = ".".join(map(str, FP8_CAPABILITY))
    raise ConfigError(
        f"--kv-cache-dtype {asked} needs an NVIDIA GPU of compute capability {needed} or newer, and {problem}: "
        "leave it out"
    )


def _tokens_of_whole_prompts(config: EngineConfig, max_model_len: int, tokens: int) -> int:
    """Return the tokens of a step of a model that makes vectors. Raises ConfigError."""
    if config.executor.pipeline_parallel_size > 1 or config.shares_experts:
        option = "--enable-expert-parallel" if config.shares_experts else "--pipeline-parallel-size"
        raise ConfigError(
            f"{option}: a model that makes vectors or scores is not split into stages, and engines do not share "
            "its experts: leave it out, or use --tensor-parallel-size"
        )
    if config.scheduler.max_num_batched_tokens is not None and tokens < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is below the longest input of {max_model_len} tokens, and inputs "
            "are computed whole: raise it, or lower --max-model-len"
        )
    return max(tokens, max_model_len)


def _graph_sizes(config: EngineConfig, max_num_seqs: int, on_cpu: bool) -> tuple[int, ...]:
    if on_cpu or config.device.enforce_eager:
        return ()
    return read_compilation_config(config.device.compilation_config).sizes(max_num_seqs)


def _async_scheduling(config: EngineConfig, on_cpu: bool) -> bool:
    # On a CPU, the scheduler and the device need the same cores.
    asked = config.scheduler.async_scheduling
    return not on_cpu and config.executor.pipeline_parallel_size == 1 if asked is None else asked


def _speculation(config: EngineConfig, model: ModelFacts, on_cpu: bool) -> Speculation | None:
    given = read_speculative_config(config.scheduler.speculative_config)
    return None if given is None or config.drafting_obstacle(model.pools) else given.resolved(on_cpu)


def _kv_cache_memory(config: EngineConfig, device: DeviceFacts) -> int | None:
    given = config.cache.kv_cache_memory_bytes
    if device.kind != "cpu":
        return given
    if config.cache.num_gpu_blocks_override:
        return given
    size = given or CPU_KV_CACHE_BYTES
    check_cpu_memory(size, config.executor.num_workers // config.nodes.nnodes, device.memory_limit)
    return size


def check_cpu_memory(size: int, workers: int, limit: int) -> None:
    """Raise ConfigError if KV caches of this size each do not fit into `limit` bytes."""
    if size * workers >= limit:
        cache = "the KV cache needs" if workers == 1 else f"the KV caches of {workers} workers need"
        raise ConfigError(
            f"{cache} {size * workers / 2**30:.2f} GiB, and this process "
            f"may use {limit / 2**30:.2f} GiB in all: lower --kv-cache-memory-bytes or raise the memory limit"
        )
