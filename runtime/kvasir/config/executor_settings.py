"""Settings of the executor: how many workers an engine has, in which processes, and how they split the model."""

from dataclasses import dataclass

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int
from kvasir_contract.units import parse_duration

# Waits in the kernel take at most 24 days.
MAX_WORKER_TIMEOUT_SECONDS = 7 * 24 * 3600
EXTERNAL_LAUNCHER = "external_launcher"
RAY = "ray"


@dataclass(frozen=True)
class ExecutorConfig:
    tensor_parallel_size: int = option(
        1,
        "worker processes of an engine that each hold a part of every layer of the model, on a GPU of their own if "
        "there are GPUs",
        parse=parse_int(1, 1024),
        short="-tp",
    )
    pipeline_parallel_size: int = option(
        1,
        "stages of an engine that each hold some layers of the model, with --tensor-parallel-size workers each (on "
        "CPUs only)",
        parse=parse_int(1, 1024),
        short="-pp",
    )
    enable_expert_parallel: bool = option(
        False, "each of several workers holds whole experts of a mixture instead of a part of every expert"
    )
    disable_custom_all_reduce: bool = option(
        False, "add small tensors of several GPUs through NCCL too, instead of memory that the GPUs share"
    )
    distributed_executor_backend: str | None = option(
        None,
        "process of the workers: the engine's own (uni), one for each worker (mp; ray if Ray starts it), or one "
        "that torchrun starts, with an engine of its own (external_launcher) [default: uni for one worker]",
        choices=("uni", "mp", RAY, EXTERNAL_LAUNCHER),
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

    @property
    def num_workers(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def split(self) -> str:
        """Return the options that split the model, as text; "" if none does."""
        sizes = {
            "--tensor-parallel-size": self.tensor_parallel_size,
            "--pipeline-parallel-size": self.pipeline_parallel_size,
        }
        return " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)

    def __post_init__(self) -> None:
        if self.worker_timeout <= 0:
            raise ConfigError("--worker-timeout 0: every step would end the engine; give 10s or more")
        if self.worker_timeout > MAX_WORKER_TIMEOUT_SECONDS:
            raise ConfigError(
                f"--worker-timeout {self.worker_timeout / 3600:g}h is too long: give "
                f"{MAX_WORKER_TIMEOUT_SECONDS // 3600}h or less"
            )
        if self.num_workers > 1 and self.distributed_executor_backend == "uni":
            raise ConfigError(
                f"--distributed-executor-backend uni has one worker, and {self.split} needs {self.num_workers}: "
                "choose mp, or leave it out"
            )
        if self.pipeline_parallel_size > 1 and self.distributed_executor_backend == EXTERNAL_LAUNCHER:
            raise ConfigError(
                f"--distributed-executor-backend {EXTERNAL_LAUNCHER} has no pipelines, because every process "
                "needs the tokens that only the last stage samples: leave --pipeline-parallel-size "
                f"{self.pipeline_parallel_size} out"
            )

    def check_experts(self, engines: int) -> None:
        """Raise ConfigError if the experts are split over a single worker. `engines`: how many share them."""
        if self.enable_expert_parallel and self.tensor_parallel_size == 1 and engines == 1:
            in_stages = "" if self.pipeline_parallel_size == 1 else " in each stage"
            raise ConfigError(
                f"--enable-expert-parallel has no effect with one worker{in_stages}: give --tensor-parallel-size 2 "
                "or more, or --data-parallel-size 2 or more for engines that share the experts"
            )

    def check_serves(self) -> None:
        """Raise ConfigError for workers that no service can have."""
        if self.distributed_executor_backend == EXTERNAL_LAUNCHER:
            raise ConfigError(
                f"--distributed-executor-backend {EXTERNAL_LAUNCHER} is for kvasir bench throughput, kvasir bench "
                "latency and kvasir.LLM: its engines must all get the same requests, and a frontend gives each "
                "request to one engine; choose mp, or leave it out"
            )
