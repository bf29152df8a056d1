"""Checks which devices can run the Triton kernels. Imports no triton."""

import functools
import importlib.util
import logging
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Final

import torch

from kvasir.kernels.triton.device_tiles import DEFAULT, DeviceTiles, device_tiles

log = logging.getLogger(__name__)

DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
# Devices on which `python -m bench.gpu` has checked the kernels (bench/results).
PROVEN: Final = ("NVIDIA H200",)
FP8: Final = torch.float8_e4m3fn
_OLDEST: Final = 8  # compute capability (sm_80)


def has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and can_compile(device)


@functools.cache
def can_compile(device: torch.device) -> bool:
    """Return whether Triton can compile kernels for the device; log once why not."""
    problem = _problem(device)
    if problem is not None:
        log.warning("no Triton kernels for %s: %s. Plain torch computes, more slowly", device, problem)
    return problem is None


def log_unproven(device: torch.device) -> None:
    """Log once if the kernels have not run on this kind of device."""
    name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "this device"
    if name not in PROVEN:
        _log_unproven(name)


@functools.cache
def _log_unproven(name: str) -> None:
    log.warning(
        "the Triton kernels have been checked on %s and not on %s: compare answers with those of --device cpu",
        ", ".join(PROVEN),
        name,
    )


@functools.cache
def log_unproven_fp8() -> None:
    log.warning(
        "the kernels of an fp8 KV cache have not run on a GPU yet: they are checked under Triton's interpreter and "
        "compiled ahead of time. Compare answers with those of --kv-cache-dtype auto"
    )


@functools.cache
def tiles_for(device: torch.device) -> DeviceTiles:
    """Return the tiles of the device; log once if they are not tuned for it."""
    if device.type != "cuda":  # the interpreter
        return device_tiles(DEFAULT, shared_bytes(device))
    name = torch.cuda.get_device_name(device)
    tiles = device_tiles(name, shared_bytes(device))
    if tiles.measured is None:
        _log_untuned(name)
    return tiles


@functools.cache
def _log_untuned(name: str) -> None:
    log.info(
        "the tiles of the Triton kernels are not tuned for %s. `python -m bench.gpu --only tune` in Kvasir's "
        "repository measures tiles for it",
        name,
    )


def shared_bytes(device: torch.device) -> int:
    """Return the limit of a program's shared memory."""
    if device.type != "cuda":  # the interpreter
        return 2**20
    properties = torch.cuda.get_device_properties(device)
    # ROCm has only one limit.
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def warp_size(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).warp_size if device.type == "cuda" else 32


def _problem(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type != "cuda":  # the interpreter
        return None
    if not _has_compiler():
        return "Triton needs a C compiler and Python's headers to start kernels, and found none"
    if torch.cuda.is_available() and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < _OLDEST:
            return f"it has compute capability {major}.{minor}, and the kernels need {_OLDEST}.0"
    return None


def _has_compiler() -> bool:
    # the same search as in triton/runtime/build.py
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
