"""Matrix products with weights: fused where several read the same input, packed where a CPU gains by it."""

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.parameter import Placement, new_parameter

_PACKED_ROWS = 16
"""The batch that oneDNN's packed layout is chosen for; seen to be as good for 1 row as for 1,024."""


_ROWS_FOR_ONE = 4
"""One row is computed as so many, which takes less time (oneDNN, Zen 4, 768 to 6,144 wide, 239 MB in all, several
runs: 8.4 to 9.9 ms for a row, 8.0 to 8.4 ms for four). Two are not: they would have to be copied."""


class Linear(nn.Module):
    """y = x Wᵀ + b.

    `outputs` as a mapping names the ranges of output rows that come as tensors of their own. `tied` is a weight
    that belongs to another layer.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int | Mapping[str, int],
        *,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
        tied: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        shards = None if isinstance(outputs, int) else outputs
        size = outputs if isinstance(outputs, int) else sum(outputs.values())
        self.weight = (  # [outputs, inputs]
            new_parameter(size, inputs, placement=placement, shards=shards, transposed=transposed)
            if tied is None
            else tied
        )
        self.bias = new_parameter(size, placement=placement, shards=shards) if bias else None
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs]
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        rows = x if x.shape[0] != 1 else x.expand(_ROWS_FOR_ONE, -1)
        product = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return product[: x.shape[0]]  # type: ignore[no-any-return]

    def pack(self) -> None:
        """Put the weight into oneDNN's blocked layout and let go of the plain one. For bfloat16 on CPU.

        F.linear would reorder the weight in every call; packed, products of 2 to 32 rows take about a third less
        time (Zen 5, 768 to 6,144 wide). A tied weight stays with its owner, and this is a second copy.
        """
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _PACKED_ROWS)
        del self.weight


def pack_linears(layers: Iterable[nn.Module], placement: Placement) -> None:
    """Pack every Linear among a loaded model's layers where this machine gains by it."""
    if placement.device.type != "cpu" or placement.dtype != torch.bfloat16:
        return
    if not (torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return
    for layer in layers:
        if isinstance(layer, Linear):
            layer.pack()
