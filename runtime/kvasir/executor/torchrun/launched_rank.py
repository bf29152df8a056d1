"""The place of this process among those that torchrun has started."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir.config.executor_settings import EXTERNAL_LAUNCHER, ExecutorConfig
from kvasir.config.options import ConfigError

_REQUIRED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class LaunchedRank:
    """Rank 0 to size - 1; `local_size` of them run on this machine."""

    rank: int
    size: int
    local_size: int
    address: str  # HOST:PORT

    @classmethod
    def of(cls, config: ExecutorConfig, environ: Mapping[str, str] = os.environ) -> "LaunchedRank":
        """Raises ConfigError if torchrun has not set the environment, or for another number of processes."""
        workers = config.tensor_parallel_size
        command = f"torchrun --nproc-per-node {workers} -m kvasir.cli.main bench …, or torchrun … your_script.py"
        missing = [name for name in _REQUIRED if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"--distributed-executor-backend {EXTERNAL_LAUNCHER}: {missing[0]} is not set; start the processes "
                f"with {command}"
            )
        rank, size = _number("RANK", environ), _number("WORLD_SIZE", environ)
        if size != workers:
            raise ConfigError(
                f"WORLD_SIZE is {size} and --tensor-parallel-size is {workers}: with "
                f"--distributed-executor-backend {EXTERNAL_LAUNCHER} every process has one worker; start {workers} "
                f"processes, or give --tensor-parallel-size {size}"
            )
        if rank >= size:
            raise ConfigError(f"RANK is {rank} and WORLD_SIZE is {size}: ranks are 0 to {size - 1}")
        local = _number("LOCAL_WORLD_SIZE", environ) if environ.get("LOCAL_WORLD_SIZE") else size
        return cls(rank, size, local, f"{environ['MASTER_ADDR']}:{_number('MASTER_PORT', environ)}")


def shows_results(config: ExecutorConfig) -> bool:
    """Return True on rank 0, or alone. Raises ConfigError."""
    return config.distributed_executor_backend != EXTERNAL_LAUNCHER or LaunchedRank.of(config).rank == 0


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name]
    if not text.isdecimal():
        raise ConfigError(f"{name}={text} is not a number: start the processes with torchrun, which sets it")
    return int(text)
