"""The product of a few rows for tools/compile_kernels.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvasir.kernels.triton.row_tiling import row_constants, row_tile
from kvasir.kernels.triton.tiling import OPTIONS
from tools.kernel_targets import Source, Target, Variant

_TYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("outputs", "inputs", "out_stride", "x_stride"), "i32"),
        **dict.fromkeys(("eps", "shift"), "fp32"),
    }
)
_DIVISIBLE: Final = ("outputs", "inputs", "out_stride", "x_stride")


@dataclass(frozen=True)
class RowVariant(Variant):
    # norm, add or gate: a field of RowTiles.
    form: str
    dtype: str
    inputs: int
    biased: bool = False

    @property
    def name(self) -> str:
        return f"row {self.form} {self.dtype} {self.inputs}{' bias' if self.biased else ''}"

    def has_measured_tile(self, target: Target) -> bool:
        return target.tiles.measured is not None

    def source(self, target: Target) -> Source:
        from kvasir.kernels.triton.few_rows.row_product import multiply_row

        gated, adds = self.form == "gate", self.form == "add"
        tile = row_tile(target.tiles.row_product, self.inputs, gated=gated, adds=adds)
        constants = row_constants(
            tile,
            normed=not adds,
            activation="silu" if gated else "",
            adds=adds,
            biased=self.biased,
            even=self.inputs % tile.inputs == 0,
        )
        options = {**OPTIONS, "num_warps": tile.num_warps}
        return Source.of(multiply_row, constants, _TYPES, self.dtype, divisible=_DIVISIBLE, options=options)


def row_variants() -> Iterator[RowVariant]:
    for dtype in ("bf16", "fp16", "fp32"):
        for form in ("norm", "add", "gate"):
            yield RowVariant(form, dtype, 4096)
        yield RowVariant("gate", dtype, 1024)
    yield RowVariant("norm", "bf16", 896, biased=True)  # rows that no tile divides
    yield RowVariant("gate", "bf16", 2880, biased=True)
