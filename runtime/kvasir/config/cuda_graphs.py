"""--compilation-config: the sizes of CUDA graphs. Names are vLLM's."""

import json
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from kvasir.config.options import ConfigError

MOST_ROWS: Final = 512
"""Of a graph, by default. In larger steps the device computes for longer than the host launches."""

_Size = Annotated[int, msgspec.Meta(ge=1, le=8192)]


class CompilationConfig(msgspec.Struct, frozen=True):
    cudagraph_mode: Literal["NONE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "FULL_AND_PIECEWISE"] = (
        "FULL_DECODE_ONLY"
    )
    """NONE: no graphs. With any other mode steps of decodes have graphs, and other steps have none."""
    cudagraph_capture_sizes: list[_Size] | None = None
    """Rows of a step. A step with fewer rows is padded to the next size."""
    max_cudagraph_capture_size: _Size | None = None

    def sizes(self, max_num_seqs: int) -> tuple[int, ...]:
        """Return the sizes of the graphs, ascending, for steps of up to so many rows."""
        if self.cudagraph_mode == "NONE":
            return ()
        if self.cudagraph_capture_sizes is not None:
            return tuple(sorted({size for size in self.cudagraph_capture_sizes if size <= max_num_seqs}))
        return default_sizes(min(max_num_seqs, self.max_cudagraph_capture_size or MOST_ROWS))


def default_sizes(most: int) -> tuple[int, ...]:
    """Return sizes up to `most`, ascending: finer where padding costs a larger share."""
    steps: Sequence[int] = (1, 2, 4, *range(8, 128, 8), *range(128, 256, 16), *range(256, most, 32))
    return (*(size for size in steps if size < most), most)


def read_compilation_config(text: str) -> CompilationConfig:
    """Raises ConfigError. Fields that Kvasir does not have are passed over: see `without_effect`."""
    try:
        return msgspec.json.decode(text, type=CompilationConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--compilation-config: {error}") from error


def ignored_fields(text: str) -> list[str]:
    """Return the names of the fields that have no effect."""
    return [name for name in json.loads(text) if name not in CompilationConfig.__struct_fields__]
