"""Finds the device of the workers. Only the search for a GPU imports torch.

`python -m kvasir.worker.device` prints the facts as JSON.
"""

import subprocess
import sys
from collections.abc import Callable

import msgspec

from kvasir.config.hardware.device_facts import GPU_DRIVERS, DeviceFacts, cpu_facts
from kvasir.config.hardware.machine import cgroup_cores
from kvasir.config.options import ConfigError
from kvasir.config.settings import DeviceConfig


def device_facts(config: DeviceConfig) -> DeviceFacts:
    # Raises ConfigError if the requested device is missing.
    return _chosen(config, gpu_facts)


def device_facts_of_workers(config: DeviceConfig) -> DeviceFacts:
    # In a child process. Raises ConfigError if the requested device is missing.
    return _chosen(config, _ask_child)


def gpu_facts() -> DeviceFacts | str:
    """Return torch's default GPU, or the reason why there is none. Creates a CUDA context."""
    import torch

    if not torch.cuda.is_available():
        return _why_unavailable()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        kind="cuda",
        name=properties.name,
        cores=cgroup_cores(),
        memory_limit=properties.total_memory,
        fast_bfloat16=properties.major >= 8,
        compute_capability=(properties.major, properties.minor) if torch.version.hip is None else None,
        gpus=torch.cuda.device_count(),
    )


def _why_unavailable() -> str:
    # The reason without torch's advice.
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split()).partition(" Please ")[0].rstrip(".")
    return "it counts 0 devices"


def _chosen(config: DeviceConfig, search: Callable[[], DeviceFacts | str]) -> DeviceFacts:
    gpu = "" if config.device == "cpu" else search()
    if isinstance(gpu, DeviceFacts):
        return gpu
    if config.device == "cuda":
        raise ConfigError(
            f"--device cuda: torch can use no GPU here: {gpu}; install a driver for this torch's CUDA version, or "
            'choose --device cpu (in a cluster, engine.resourceName "")'
        )
    return cpu_facts()


def _ask_child() -> DeviceFacts | str:
    if not any(driver.exists() for driver in GPU_DRIVERS):
        return f"none of {', '.join(map(str, GPU_DRIVERS))} exists, so no GPU driver is visible"
    child = subprocess.run(
        [sys.executable, "-m", "kvasir.worker.device"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    if child.returncode != 0:
        raise RuntimeError(
            f"the process that searches for a GPU ended with exit code {child.returncode}: see its output above, "
            "or choose --device cpu"
        )
    found: DeviceFacts | str = msgspec.json.decode(child.stdout, type=DeviceFacts | str)
    return found


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(gpu_facts()))
