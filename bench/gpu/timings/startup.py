"""The start of an engine in a fresh process, from a checkpoint on the local disk to the first token."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from bench.gpu.shapes import MODELS, tiny
from bench.gpu.worker import Context

# The first start also compiles kernels that no section before it has used.
REPEATS = 2


def run(context: Context, argument: str) -> None:
    shape = tiny(MODELS[argument]) if context.tiny else MODELS[argument]
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as folder:
        began = time.perf_counter()
        num_bytes = shape.save(Path(folder), torch.bfloat16, context.device)
        seconds = time.perf_counter() - began
        context.record("write", {"bytes": num_bytes, "seconds": seconds})
        context.line(f"startup: {num_bytes / 2**30:.1f} GiB of weights written in {seconds:.1f} s")
        if context.on_gpu:
            torch.cuda.empty_cache()
        for number in range(1 if context.tiny else REPEATS):
            phases = _start(folder, context)
            context.record(f"start {number + 1}", phases)
            shown = ", ".join(f"{name} {value:.2f}" for name, value in phases.items())
            context.line(f"startup {number + 1}, s: {shown}")


def _start(folder: str, context: Context) -> dict[str, float]:
    """Return the seconds of each phase."""
    command = [sys.executable, "-m", "bench.gpu.timings.first_token", folder, context.device]
    command += ["--tiny"] if context.tiny else []
    spawned = time.time()
    done = subprocess.run([*command, "--spawned", repr(spawned)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the engine ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    phases: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return phases
