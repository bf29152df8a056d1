"""The numerics class: engines of one class compute equal logits from equal tokens.

The number of threads is not in it, although it may change the last bits: it varies.
"""

from importlib.metadata import version

from kvasir.config.hardware.machine import cpu_flags
from kvasir.config.resolve import ResolvedEngine
from kvasir.version import __version__

# instruction sets that choose kernels
_PREFIXES = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16")


def numerics_class(settings: ResolvedEngine, experts_shared_by: int) -> str:
    """Return the class: "float32 invariant tp1 pp1 cpu avx,avx2,fma kvasir 0.1.0 torch 2.9.0"."""
    executor = settings.executor
    layout = f"tp{executor.tensor_parallel_size} pp{executor.pipeline_parallel_size}"
    if executor.enable_expert_parallel:
        layout += f" ep{executor.tensor_parallel_size * experts_shared_by}"
    precision = f"{settings.dtype} fp8-kv" if settings.fp8_kv_cache else settings.dtype
    batches = "invariant" if settings.batch_invariant else "any-batch"
    return (
        f"{precision} {batches} {layout} {settings.device} {_hardware(settings)} "
        f"kvasir {__version__} torch {version('torch')}"
    )


def _hardware(settings: ResolvedEngine) -> str:
    if settings.device == "cpu":
        return ",".join(sorted(flag for flag in cpu_flags() if flag.startswith(_PREFIXES)))
    return settings.gpu_name
