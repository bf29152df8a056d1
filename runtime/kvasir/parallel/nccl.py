"""Joins the ranks on one machine's GPUs. Has not run on several GPUs yet."""

import logging
import os
import secrets
import tempfile
from collections.abc import MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from kvasir.parallel.one_shot import connect_one_shot
from kvasir.parallel.parallel_state import ParallelState
from kvasir.parallel.start import LOOPBACK
from kvasir.parallel.torch_group import TorchGroup

log = logging.getLogger(__name__)

_BUFFER_SIZE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"
_DUMP_ON_TIMEOUT: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_DUMP_FILE: Final = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
# Torch 2.11 to 2.15 read it first.
_NEWER_DUMP_FILE: Final = "TORCH_FR_DUMP_TEMP_FILE"
_RECORDED_OPERATIONS: Final = 2000


def init_gpus(
    rank: int,
    size: int,
    rendezvous: Path,
    device: torch.device,
    *,
    timeout: float,
    operation_timeout: float,
    expert_parallel: bool,
    one_shot: bool,
) -> ParallelState:
    """Wait for all ranks, 2 or more. Call once per process.

    `timeout`: seconds for this wait; RuntimeError if a rank is late. After `operation_timeout` in an operation,
    torch writes its record and aborts the process.
    """
    torch.cuda.set_device(device)
    os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    prefix = switch_recorder_on(os.environ)
    store = dist.FileStore(str(rendezvous), size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=timeout))
    limit = timedelta(seconds=operation_timeout)
    # With a device, ranks connect here and not within a CUDA graph.
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=limit, device_id=device)
    group = dist.group.WORLD
    assert group is not None
    log.info(
        "NCCL connects %d GPUs; after an operation of more than %.0f s, %s%d has the last ones (torch's flight "
        "recorder)",
        size,
        operation_timeout,
        prefix,
        rank,
    )
    tensor = TorchGroup(group, connect_one_shot(group, device) if one_shot else None)
    return ParallelState(tensor, expert_parallel=expert_parallel)


def switch_recorder_on(environ: MutableMapping[str, str]) -> str:
    """Call it before the first group. Return the path of its files."""
    # Random: others may write here.
    path = f"{tempfile.gettempdir()}/kvasir-nccl-{secrets.token_hex(4)}-rank-"
    environ.setdefault(_BUFFER_SIZE, str(_RECORDED_OPERATIONS))
    environ.setdefault(_DUMP_ON_TIMEOUT, "1")
    environ.setdefault(_DUMP_FILE, path)
    return environ.get(_NEWER_DUMP_FILE) or environ[_DUMP_FILE]
