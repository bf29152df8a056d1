"""The tiles of the kernels by device, from device_tiles.json. Imports no torch or triton.

`bench/gpu/timings/tune.py` measures the tiles of a device and prints its entry.
"""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from kvasir.kernels.triton.row_tiling import RowTiles
from kvasir.kernels.triton.tiling import AttentionTiles

DEFAULT: Final = "default"


class DeviceTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measured: str | None  # date and versions; None: not tuned
    attention: AttentionTiles
    row_product: RowTiles

    @property
    def shared_bytes(self) -> int:
        return max(self.attention.shared_bytes, self.row_product.shared_bytes)


def device_tiles(name: str, shared_bytes: int) -> DeviceTiles:
    # `name` is torch's. Devices of one name may differ in shared memory.
    entries = device_entries()
    own = entries.get(name)
    return entries[DEFAULT] if own is None or own.shared_bytes > shared_bytes else own


@functools.cache
def device_entries() -> Mapping[str, DeviceTiles]:
    content = files(__package__).joinpath("device_tiles.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, DeviceTiles])
