"""The tiles of the kernels by device, from device_tiles.json.

`bench/gpu/timings/tune.py` measures the tiles of a device and prints its entry. No torch and no triton.
"""

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import msgspec

from kvasir.kernels.triton.few_rows.row_tiling import RowTiles
from kvasir.kernels.triton.tiling import AttentionTiles

DEFAULT: Final = "default"
"""The entry of devices without one of their own, and of Triton's interpreter."""


class DeviceTiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measured: str | None
    """Date and versions of the measurement that chose the tiles. None: they are not tuned."""
    attention: AttentionTiles
    row_product: RowTiles

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program, at most."""
        return max(self.attention.shared_bytes, self.row_product.shared_bytes)


def device_tiles(name: str, shared_bytes: int) -> DeviceTiles:
    """Return the tiles of the device with this name of torch.cuda.get_device_name.

    A device has the default entry if no entry has its name, or if its own one needs more than `shared_bytes`, the
    most shared memory of a program.
    """
    entries = device_entries()
    own = entries.get(name)
    return entries[DEFAULT] if own is None or own.shared_bytes > shared_bytes else own


@functools.cache
def device_entries() -> Mapping[str, DeviceTiles]:
    """Return the entries by the names of devices."""
    content = files(__package__).joinpath("device_tiles.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, DeviceTiles])
