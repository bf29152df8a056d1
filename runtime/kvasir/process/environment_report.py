"""The report of `kvasir collect-env`, without secrets. A process of its own asks torch, which may be broken."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvasir import version
from kvasir.config.hardware.machine import cgroup_cores, cpu_flags, cpu_name, memory_limit
from kvasir_contract.api import CRD_NAME

PACKAGES: Final = (
    *("torch", "numpy", "safetensors", "transformers", "tokenizers", "huggingface-hub", "triton"),
    *(
        "msgspec",
        "pyzmq",
        "fastapi",
        "pydantic",
        "starlette",
        "uvicorn",
        "uvloop",
        "httptools",
        "orjson",
        "httpx",
        "aiohttp",
    ),
    *("prometheus-client", "kopf", "kubernetes"),
)
# prefixes of environment variables
SETTINGS: Final = (
    *("KVASIR_", "VLLM_", "HF_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "NCCL_", "TRITON_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_", "MALLOC_", "LD_PRELOAD"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")
_USEFUL_FLAGS: Final = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "asimd", "bf16", "i8mm", "sve"),
)
_PATIENCE: Final = 60  # the first import of a large torch takes a while

_ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "cuda_build": torch.version.cuda,
    "cuda_usable": cuda,
    "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if cuda else [],
    "threads": torch.get_num_threads(),
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "onednn": torch.backends.mkldnn.is_available(),
    "onednn_bf16": getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: None)(),
}))
"""

Section = dict[str, Any]


def describe_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Section]:
    return {
        "kvasir": {
            "version": version.__version__,
            "path": str(Path(version.__file__).parent),
            "python": f"{platform.python_version()} ({sys.executable})",
        },
        "machine": _machine(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "torch": _torch(),
        "gpu": _gpu(),
        "kubernetes": _kubernetes(environ),
        "settings": settings_of(environ),
    }


def settings_of(environ: Mapping[str, str]) -> Section:
    """Return the variables that matter; of a secret, only that it is set."""
    found = {name: environ[name] for name in sorted(environ) if name.startswith(SETTINGS)}
    return {
        name: "(set, not shown)" if value and _SECRET.search(name) else _USER_IN_URL.sub("://…@", value)
        for name, value in found.items()
    }


def _machine() -> Section:
    flags, limit = cpu_flags(), memory_limit()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {_distribution()}",
        "cpu": cpu_name(),
        "instruction_sets": " ".join(flag for flag in _USEFUL_FLAGS if flag in flags) or "none of those looked for",
        "cores": f"{os.cpu_count()} in the machine, {cgroup_cores()} for this process",
        "memory": f"{total / 2**30:.1f} GiB in the machine, {limit / 2**30:.1f} GiB for this process",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "shm": f"{shutil.disk_usage('/dev/shm').free / 2**30:.1f} GiB free"
        if os.path.exists("/dev/shm")
        else "none",
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return "a distribution without a name in os-release"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Section:
    if _version("torch") is None:
        return {"state": "not installed: this installation can be a frontend or a client"}
    code, output, error = _ask(sys.executable, "-P", "-c", _ASK_TORCH)
    if code != 0:
        return {"state": f"cannot be imported: {_last_line(error) or f'exit code {code}'}"}
    return dict(json.loads(output))


def _gpu() -> Section:
    if shutil.which("nvidia-smi") is None:
        return {"state": "nvidia-smi is not here"}
    query = "index,name,driver_version,memory.total,memory.used,compute_cap"
    code, output, error = _ask("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    if code != 0:
        return {"state": f"nvidia-smi fails: {_last_line(error or output)}"}
    return {index: rest.strip() for index, _, rest in (line.partition(",") for line in output.splitlines())}


def _kubernetes(environ: Mapping[str, str]) -> Section:
    inside = {"in_a_pod": "yes"} if "KUBERNETES_SERVICE_HOST" in environ else {}
    if shutil.which("kubectl") is None:
        return {**inside, "state": "kubectl is not here"}
    code, context, _ = _ask("kubectl", "config", "current-context")
    if code != 0 and not inside:
        return {"state": "kubectl has no current context"}
    code, output, error = _ask("kubectl", "version", "--output=json", "--request-timeout=5s")
    named = {**inside, "context": context.strip()} if context.strip() else inside
    if code != 0:
        return {**named, "state": f"not reachable: {_last_line(error)}"}
    return {
        **named,
        "state": "reachable",
        "server": json.loads(output)["serverVersion"]["gitVersion"],
        **_installed(),
    }


def _installed() -> Section:
    code, _, error = _ask("kubectl", "get", "crd", CRD_NAME, "--request-timeout=5s")
    return {"crd": f"{CRD_NAME} is installed" if code == 0 else _last_line(error)}


def _ask(*command: str) -> tuple[int, str, str]:
    """Return exit code and output; a program that hangs or does not exist has failed."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return _USER_IN_URL.sub("://…@", lines[-1]) if lines else ""
