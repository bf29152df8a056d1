"""The products with quantised weights for tools/compile_kernels.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvasir.kernels.triton.quantised.weight_tiling import (
    WeightForm,
    dequantise_tile,
    half_step,
    product_constants,
    row_weight_tile,
    tiled_weight_tile,
    weight_constants,
)
from kvasir.kernels.triton.tiling import OPTIONS
from tools.kernel_targets import DTYPE_BYTES, Source, Target, Variant

_NUMBERS: Final = MappingProxyType({"int8": "*i8", "fp8": "*u8", "int4": "*u8", "signed4": "*u8", "table4": "*u8"})


@dataclass(frozen=True)
class QuantisedVariant(Variant):
    kind: str
    group: int
    dtype: str
    rows: int  # 0: the whole weight is dequantised
    inputs: int = 4096

    @property
    def name(self) -> str:
        return f"quantised {self.kind} {self.group} {self.dtype} rows {self.rows}"

    def source(self, target: Target) -> Source:
        from kvasir.kernels.triton.quantised import weight_kernels as kernels

        half = half_step(self.inputs, self.group, DTYPE_BYTES[self.dtype])
        assert half is not None
        form = WeightForm(self.kind, self.inputs, self.group, half)
        if self.rows == 0:
            tile, kernel = dequantise_tile(), kernels.write_floats
            constants = {**weight_constants(form), "OUTPUTS": tile.outputs}
        elif self.rows == 1:
            tile, kernel = row_weight_tile(), kernels.multiply_one_row
            constants = {**weight_constants(form), "OUTPUTS": tile.outputs, "STAGES": tile.num_stages}
        else:
            tile, kernel = tiled_weight_tile(self.rows, DTYPE_BYTES[self.dtype]), kernels.multiply_few_rows
            constants = product_constants(form, tile, exact=self.dtype == "fp32", interpreted=False)
        types = {"numbers": _NUMBERS[self.kind], "scales": "*fp32", "zeros": "*u8", "table": "*fp32"}
        types |= dict.fromkeys(("rows", "outputs"), "i32")
        options = {**OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
        return Source.of(kernel, constants, types, self.dtype, divisible=("outputs",), options=options)


def quantised_variants() -> Iterator[QuantisedVariant]:
    for kind, group in (
        ("int8", 4096),
        ("fp8", 4096),
        ("fp8", 128),
        ("int4", 128),
        ("signed4", 32),
        ("table4", 32),
    ):
        for rows in (0, 1, 16, 64):
            yield QuantisedVariant(kind, group, "bf16", rows)
    yield QuantisedVariant("int4", 128, "fp16", 16)
    yield QuantisedVariant("int4", 128, "fp32", 64)
