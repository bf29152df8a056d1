"""Sizes of CUDA graphs, from --compilation-config. Names are vLLM's."""

import json
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from kvasir.config.advice import closest
from kvasir.config.options import ConfigError

# Larger steps usually take the device longer than the host.
MAX_GRAPH_ROWS: Final = 512

_Size = Annotated[int, msgspec.Meta(ge=1, le=8192)]
_Mode = Literal["NONE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "FULL_AND_PIECEWISE"]


class CompilationConfig(msgspec.Struct, frozen=True):
    cudagraph_mode: _Mode | None = None
    """NONE: no graphs. In all other modes only steps of decodes have graphs."""
    # Older releases of vLLM have this field.
    use_cudagraph: bool = True
    cudagraph_capture_sizes: list[_Size] | None = None
    """Rows of a step. A step with fewer rows is padded to the next size."""
    max_cudagraph_capture_size: _Size | None = None

    def sizes(self, max_num_seqs: int) -> tuple[int, ...]:
        """Return the sizes of the graphs for steps of up to so many rows, ascending."""
        if self.cudagraph_mode == "NONE" or not self.use_cudagraph:
            return ()
        if self.cudagraph_capture_sizes is None:
            return default_sizes(min(max_num_seqs, self.max_cudagraph_capture_size or MAX_GRAPH_ROWS))
        most = min(max_num_seqs, self.max_cudagraph_capture_size or max_num_seqs)
        return tuple(sorted({min(size, most) for size in self.cudagraph_capture_sizes}))


def default_sizes(most: int) -> tuple[int, ...]:
    # Finer for small sizes, where padding costs a larger share.
    steps: Sequence[int] = (1, 2, 4, *range(8, 128, 8), *range(128, 256, 16), *range(256, most, 32))
    return (*(size for size in steps if size < most), most)


def read_compilation_config(text: str) -> CompilationConfig:
    """Return the fields that Kvasir has; `ignored_fields` returns the others. Raises ConfigError."""
    try:
        config = msgspec.json.decode(text, type=CompilationConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--compilation-config: {error}") from error
    for name in ignored_fields(text):
        if meant := closest(name, CompilationConfig.__struct_fields__):
            raise ConfigError(f"--compilation-config: there is no field {name!r} (did you mean {meant!r}?)")
    return config


def ignored_fields(text: str) -> list[str]:
    return [name for name in json.loads(text) if name not in CompilationConfig.__struct_fields__]
