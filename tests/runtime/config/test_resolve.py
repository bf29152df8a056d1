import dataclasses
from typing import Any

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.hardware.device_facts import DeviceFacts
from kvasir.config.nodes import NodesConfig
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ModelFacts, ResolvedEngine, resolve_engine, without_effect
from kvasir.config.settings import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)

CPU = DeviceFacts(kind="cpu", name="a CPU", cores=4, memory_limit=8 * 2**30, fast_bfloat16=True)
GPU = DeviceFacts(
    kind="cuda", name="a GPU", cores=4, memory_limit=80 * 2**30, fast_bfloat16=True, compute_capability=(9, 0)
)
MODEL = ModelFacts(dtype="bfloat16", max_model_len=4096, width=4096)


def resolve(
    device: DeviceFacts = CPU, model: ModelFacts = MODEL, max_model_len: int | None = None, **parts: object
) -> ResolvedEngine:
    config = EngineConfig(ModelConfig("demo://", max_model_len=max_model_len))
    return resolve_engine(dataclasses.replace(config, **parts), model, device)  # type: ignore[arg-type]


def test_nothing_is_left_auto_on_cpu() -> None:
    resolved = resolve()
    assert (resolved.device, resolved.dtype, resolved.max_model_len) == ("cpu", "bfloat16", 4096)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (64, 2048)
    assert resolved.kv_cache_memory_bytes == 2**30


def test_a_gpu_takes_larger_steps_and_profiles_its_memory() -> None:
    resolved = resolve(GPU)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (256, 8192)
    assert resolved.kv_cache_memory_bytes is None


def test_bfloat16_without_instructions_becomes_float32() -> None:
    slow = dataclasses.replace(CPU, fast_bfloat16=False)
    assert resolve(slow).dtype == "float32"


@pytest.mark.parametrize(("device", "share", "named"), [(CPU, 0.8, True), (CPU, 0.9, False), (GPU, 0.8, False)])
def test_a_share_of_a_gpu_has_no_effect_on_a_cpu(device: DeviceFacts, share: float, named: bool) -> None:
    config = EngineConfig(ModelConfig("demo://"), cache=CacheConfig(gpu_memory_utilization=share))
    assert [text.split()[0] for text in without_effect(config, MODEL, device)] == [
        "--gpu-memory-utilization"
    ] * named


def test_a_given_dtype_wins() -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(dtype="float32"))
    assert resolve_engine(config, MODEL, CPU).dtype == "float32"


@pytest.mark.parametrize(
    ("given", "format"), [("auto", "safetensors"), ("safetensors", "safetensors"), ("dummy", "dummy")]
)
def test_weights_come_from_safetensors_unless_asked(given: str, format: str) -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(load_format=given))
    assert resolve_engine(config, MODEL, CPU).load_format == format


def test_ranks_of_one_machine_share_its_cores() -> None:
    assert resolve(parallel=ParallelConfig(data_parallel_size_local=2)).threads == 2
    assert resolve(parallel=ParallelConfig(data_parallel_size_local=16)).threads == 1


@pytest.mark.parametrize(("width", "threads"), [(128, 1), (256, 1), (257, 4), (None, 4)])
def test_a_small_model_takes_one_thread(width: int | None, threads: int) -> None:
    assert resolve(model=dataclasses.replace(MODEL, width=width)).threads == threads


def test_threads_that_were_asked_for_are_used_whatever_the_model() -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(threads=3))
    assert resolve_engine(config, dataclasses.replace(MODEL, width=64), CPU).threads == 3


def test_a_default_count_of_threads_yields_to_other_processes() -> None:
    assert resolve().yield_threads
    assert not resolve(GPU).yield_threads
    assert not resolve(parallel=ParallelConfig(data_parallel_size_local=4)).yield_threads  # one thread each


def test_threads_that_were_asked_for_never_yield() -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(threads=3))
    assert not resolve_engine(config, MODEL, CPU).yield_threads


def test_omp_num_threads_sets_the_threads_unless_an_option_does() -> None:
    facts = dataclasses.replace(CPU, openmp_threads=2)
    resolved = resolve(facts)
    assert (resolved.threads, resolved.yield_threads) == (2, False)
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(threads=3))
    assert resolve_engine(config, MODEL, facts).threads == 3


def test_the_budget_follows_the_rows_and_the_rows_the_budget() -> None:
    assert resolve(scheduler=SchedulerConfig(max_num_seqs=4096)).max_num_batched_tokens == 4096
    assert resolve(scheduler=SchedulerConfig(max_num_batched_tokens=16)).max_num_seqs == 16


@pytest.mark.parametrize(
    ("asked", "capability", "fp8"),
    [("auto", (9, 0), False), ("fp8", (9, 0), True), ("fp8_e4m3", (8, 9), True), ("fp8", (12, 0), True)],
)
def test_a_gpu_with_fp8_can_have_an_fp8_cache(asked: str, capability: tuple[int, int], fp8: bool) -> None:
    device = dataclasses.replace(GPU, compute_capability=capability)
    assert resolve(device, cache=CacheConfig(kv_cache_dtype=asked)).fp8_kv_cache == fp8


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        (CPU, "this engine computes on a CPU"),
        (dataclasses.replace(GPU, name="A100", compute_capability=(8, 0)), r"A100 has compute capability 8\.0"),
        (dataclasses.replace(GPU, name="MI300X", compute_capability=None), "MI300X is not an NVIDIA GPU"),
    ],
)
def test_devices_without_fp8_have_no_fp8_cache(device: DeviceFacts, problem: str) -> None:
    assert not resolve(device).fp8_kv_cache
    with pytest.raises(
        ConfigError, match=rf"--kv-cache-dtype fp8_e4m3 needs .* 8\.9 or newer, and {problem}: leave"
    ):
        resolve(device, cache=CacheConfig(kv_cache_dtype="fp8_e4m3"))


def test_a_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 5000 is more than the model's own 4096"):
        resolve(max_model_len=5000)


def test_a_cache_larger_than_the_containers_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower --kv-cache-memory-bytes or raise the memory limit"):
        resolve(cache=CacheConfig(kv_cache_memory_bytes=9 * 2**30))


def test_the_caches_of_all_workers_must_fit() -> None:
    two = ExecutorConfig(tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"the KV caches of 2 workers need 10\.00 GiB"):
        resolve(cache=CacheConfig(kv_cache_memory_bytes=5 * 2**30), executor=two)
    assert resolve(cache=CacheConfig(kv_cache_memory_bytes=3 * 2**30), executor=two)
    four = ExecutorConfig(tensor_parallel_size=2, pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match=r"the KV caches of 4 workers need 12\.00 GiB"):
        resolve(cache=CacheConfig(kv_cache_memory_bytes=3 * 2**30), executor=four)


def test_layers_are_split_over_as_many_gpus_as_there_are() -> None:
    two = ExecutorConfig(tensor_parallel_size=2)
    resolved = resolve(dataclasses.replace(GPU, gpus=2), executor=two)
    assert (resolved.device, resolved.gpu_name, resolved.async_scheduling) == ("cuda", "a GPU", True)
    assert resolved.graph_sizes
    with pytest.raises(ConfigError, match="--tensor-parallel-size 2 needs 2 GPUs and torch finds 1: lower it"):
        resolve(dataclasses.replace(GPU, gpus=1), executor=two)


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ({"executor": ExecutorConfig(pipeline_parallel_size=2)}, "--pipeline-parallel-size 2"),
        (
            {"executor": ExecutorConfig(tensor_parallel_size=2), "nodes": NodesConfig(2, master_addr="a")},
            "--nnodes 2",
        ),
        (
            {"executor": ExecutorConfig(tensor_parallel_size=2, distributed_executor_backend="external_launcher")},
            "--tensor-parallel-size 2 with --distributed-executor-backend external_launcher",
        ),
    ],
)
def test_other_splits_over_gpus_are_refused(parts: dict[str, Any], options: str) -> None:
    with pytest.raises(ConfigError, match=f"^{options} is supported on CPUs only: give --device cpu"):
        resolve(dataclasses.replace(GPU, gpus=8), **parts)


@pytest.mark.parametrize(
    ("device", "asked", "expected"), [(CPU, None, False), (GPU, None, True), (CPU, True, True), (GPU, False, False)]
)
def test_steps_overlap_by_default_on_a_gpu(device: DeviceFacts, asked: bool | None, expected: bool) -> None:
    assert resolve(device, scheduler=SchedulerConfig(async_scheduling=asked)).async_scheduling is expected


def test_overlapped_steps_of_a_pipeline_are_refused() -> None:
    with pytest.raises(ConfigError, match="--async-scheduling has no effect with --pipeline-parallel-size 2"):
        resolve(scheduler=SchedulerConfig(async_scheduling=True), executor=ExecutorConfig(pipeline_parallel_size=2))


@pytest.mark.parametrize(("seconds", "reason"), [(0.0, "0: every step"), (3.6e6, "1000h is too long: give 168h")])
def test_a_worker_timeout_that_no_step_can_have_is_refused(seconds: float, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--worker-timeout {reason}"):
        ExecutorConfig(worker_timeout=seconds)


@pytest.mark.parametrize(("fast", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_float16_on_a_cpu_is_computed_as_the_cpu_can(fast: bool, dtype: str) -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(dtype="float16"))
    cpu = dataclasses.replace(CPU, fast_bfloat16=fast)
    assert resolve_engine(config, MODEL, cpu).dtype == dtype
    assert without_effect(config, MODEL, cpu) == [f"--dtype float16 is for GPUs: this CPU computes in {dtype}"]
    assert resolve_engine(config, MODEL, GPU).dtype == "float16"
    assert without_effect(config, MODEL, GPU) == []


def test_a_rank_must_be_below_the_number_of_ranks() -> None:
    ParallelConfig(data_parallel_rank=3)  # of a service whose number of engines it does not need
    with pytest.raises(ConfigError, match="--data-parallel-rank 2 is not below --data-parallel-size 2"):
        ParallelConfig(data_parallel_rank=2, data_parallel_size=2)


@pytest.mark.parametrize("address", ["*", "0.0.0.0", "::"])
def test_engines_do_not_meet_at_an_address_of_every_machine(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--data-parallel-address .* leads each engine to its own machine"):
        ParallelConfig(data_parallel_address=address)


def test_whole_experts_need_several_workers_or_engines() -> None:
    experts = ExecutorConfig(enable_expert_parallel=True)
    with pytest.raises(ConfigError, match="--enable-expert-parallel has no effect with one worker"):
        EngineConfig(ModelConfig("demo://"), executor=experts)
    EngineConfig(ModelConfig("demo://"), executor=experts, parallel=ParallelConfig(data_parallel_size=2))


@pytest.mark.parametrize(
    ("asked", "dtype", "fast_bfloat16", "expected"),
    [
        ("auto", "float32", True, True),
        ("auto", "bfloat16", False, True),
        ("auto", "bfloat16", True, False),
        ("on", "bfloat16", True, True),
        ("off", "float32", False, False),
    ],
)
def test_batch_invariance(asked: str, dtype: str, fast_bfloat16: bool, expected: bool) -> None:
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(dtype=dtype, batch_invariant=asked))
    resolved = resolve_engine(config, MODEL, dataclasses.replace(CPU, fast_bfloat16=fast_bfloat16))
    assert resolved.batch_invariant is expected


def test_batch_invariance_on_a_gpu_is_refused() -> None:
    gpu = dataclasses.replace(CPU, kind="cuda")
    config = EngineConfig(ModelConfig("demo://"), device=DeviceConfig(batch_invariant="on"))
    with pytest.raises(ConfigError, match="--batch-invariant on is supported on CPUs only"):
        resolve_engine(config, MODEL, gpu)
    assert not resolve_engine(EngineConfig(ModelConfig("demo://")), MODEL, gpu).batch_invariant


def test_a_step_holds_the_longest_input_of_a_model_that_pools() -> None:
    pools = dataclasses.replace(MODEL, pools=True, max_model_len=30_000)
    resolved = resolve_engine(EngineConfig(ModelConfig("demo://")), pools, CPU)
    assert resolved.max_num_batched_tokens == 30_000
    assert not resolved.enable_prefix_caching
    assert resolved.long_prefill_token_threshold is None
    short = EngineConfig(ModelConfig("demo://", max_model_len=100))
    assert resolve_engine(short, pools, CPU).max_num_batched_tokens == 2048


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            EngineConfig(ModelConfig("demo://"), scheduler=SchedulerConfig(max_num_batched_tokens=64)),
            "computed whole",
        ),
        (EngineConfig(ModelConfig("demo://"), executor=ExecutorConfig(pipeline_parallel_size=2)), "not split into"),
    ],
)
def test_settings_that_no_model_that_pools_can_have(config: EngineConfig, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve_engine(config, dataclasses.replace(MODEL, pools=True), CPU)
