"""The tiles of the kernels by device, from device_tiles.json. Imports neither torch nor triton.

`bench/gpu/timings/tune.py` measures the tiles of a device and prints its entry.
"""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from kvasir.kernels.triton.few_rows.row_tiling import RowTiles
from kvasir.kernels.triton.tiling import AttentionTiles

# The entry of other devices, and of Triton's interpreter.
DEFAULT: Final = "default"


class DeviceTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measured: str | None
    """Date and versions of the measurement; None: not tuned."""
    attention: AttentionTiles
    row_product: RowTiles

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a program."""
        return max(self.attention.shared_bytes, self.row_product.shared_bytes)


def device_tiles(name: str, shared_bytes: int) -> DeviceTiles:
    """Return the tiles of a device, by torch.cuda.get_device_name."""
    # An entry for a device of this name with more shared memory would not fit.
    entries = device_entries()
    own = entries.get(name)
    return entries[DEFAULT] if own is None or own.shared_bytes > shared_bytes else own


@functools.cache
def device_entries() -> Mapping[str, DeviceTiles]:
    content = files(__package__).joinpath("device_tiles.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, DeviceTiles])
