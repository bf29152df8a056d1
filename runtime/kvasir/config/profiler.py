"""Settings of profiles, from --profiler-config. Names are vLLM's."""

from typing import Annotated, Final

import msgspec

from kvasir.config.options import ConfigError

# A profile grows with each step, in the memory of the worker: by 0.4 MB for a model with three layers.
MAX_PROFILED_STEPS: Final = 100


class ProfilerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profiler: str
    torch_profiler_dir: str
    """Existing or new directory on the machine of the engine."""
    torch_profiler_with_stack: bool = False
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    max_iterations: Annotated[int, msgspec.Meta(ge=1, le=1000)] = MAX_PROFILED_STEPS
    """Steps after which a profile ends by itself."""


def read_profiler_config(text: str) -> ProfilerConfig | None:
    """Return the settings, None for an empty object. Raises ConfigError."""
    if text == "{}":
        return None
    try:
        config = msgspec.json.decode(text, type=ProfilerConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--profiler-config: {error}") from error
    if config.profiler != "torch":
        raise ConfigError(f'--profiler-config: profiler {config.profiler!r} is not supported: use "torch"')
    if not config.torch_profiler_dir.startswith("/"):
        raise ConfigError("--profiler-config: torch_profiler_dir is not an absolute path: give one")
    return config
