"""Products of a few rows with the operations around them, next to their definition in float64."""

import torch
from bench.gpu.checks.comparison import compare, guarded, numbers, report, same
from bench.gpu.checks.fused import EPS, activated, normalised
from bench.gpu.checks.interpreted import rounding_to_nearest
from bench.gpu.worker import Context
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.few_rows.row_products import RowNorm, add_product_, product

# Rows, inputs and outputs.
SHAPES = (
    (1, 4096, 6144),
    (1, 14336, 4096),
    (1, 1024, 4096),
    (1, 2048, 3072),
    (1, 896, 1152),
    (2, 2880, 2880),
    (3, 80, 21),
    (1, 16, 1),
)
# Columns next to the operands, which stay as they are.
_MORE = 16


@torch.inference_mode()
def run(context: Context, argument: str) -> None:
    dtype = getattr(torch, argument)
    if context.on_gpu:
        _run(context, dtype)
    else:
        with rounding_to_nearest():
            _run(context, dtype)


def _run(context: Context, dtype: torch.dtype) -> None:
    for rows, inputs, outputs in SHAPES[-2:] if context.tiny else SHAPES:
        for biased in (False, True):
            case = f"{dtype} {rows} x [{outputs}, {inputs}]{', bias' if biased else ''}"
            with guarded(context, "multiply_row, norm", case):
                _norms(context, case, rows, inputs, outputs, biased, dtype)
            with guarded(context, "multiply_row, gate", case):
                _gates(context, case, rows, inputs, outputs, biased, dtype)
            with guarded(context, "multiply_row, added", case):
                _added(context, case, rows, inputs, outputs, biased, dtype)


def _norms(
    context: Context, case: str, rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype
) -> None:
    x, weight, bias = _operands(context, rows, inputs, outputs, biased, dtype)
    report(
        context,
        "multiply_row, norm",
        f"{case}, plain",
        compare(product(x, weight, bias), _exact(x, weight, bias), dtype),
    )
    for shift in (0.0, 1.0):
        norm = _norm(context, inputs, shift, dtype)
        exact = _exact(normalised(x, norm.weight, shift), weight, bias)
        found = product(x, weight, bias, norm=norm)
        report(context, "multiply_row, norm", f"{case}, shift {shift:g}", compare(found, exact, dtype))


def _gates(
    context: Context, case: str, rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype
) -> None:
    # The two products are rounded before the activation.
    x, weight, bias = _operands(context, rows, inputs, 2 * outputs, biased, dtype)
    norm = _norm(context, inputs, 0.0, dtype)
    products = _exact(normalised(x, norm.weight, 0.0), weight, bias).to(dtype).double()
    gate, up = products.chunk(2, dim=1)
    for activation in Activation:
        found = product(x, weight, bias, norm=norm, activation=activation)
        outcome = compare(found, activated(gate, activation) * up, dtype)
        report(context, "multiply_row, gate", f"{case}, {activation.name}", outcome)


def _added(
    context: Context, case: str, rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype
) -> None:
    x, weight, bias = _operands(context, rows, inputs, outputs, biased, dtype)
    wide = numbers(rows, outputs + _MORE, dtype=dtype, device=context.device, seed=5)
    before, total = wide.clone(), wide[:, :outputs]
    exact = total.double() + _exact(x, weight, bias)
    add_product_(total, x, weight, bias)
    report(context, "multiply_row, added", case, compare(total, exact, dtype))
    others = same(wide[:, outputs:], before[:, outputs:])
    report(context, "multiply_row, added", f"{case}, other columns", others)


def _operands(
    context: Context, rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    # x, with gaps between rows; the weight; the bias.
    device = context.device
    x = numbers(rows, inputs + _MORE, dtype=dtype, device=device, seed=1)[:, :inputs]
    weight = numbers(outputs, inputs, dtype=dtype, device=device, seed=2, scale=inputs**-0.5)
    bias = numbers(outputs, dtype=dtype, device=device, seed=3) if biased else None
    return x, weight, bias


def _norm(context: Context, inputs: int, shift: float, dtype: torch.dtype) -> RowNorm:
    return RowNorm(numbers(inputs, dtype=dtype, device=context.device, seed=4), EPS, shift)


def _exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # [rows, outputs] in float64
    found = x.double() @ weight.double().T
    return found if bias is None else found + bias.double()
