"""Compares numbers of a kernel with exact ones: by the norm of all errors, and number by number.

The norm shows a small error of all numbers; a single wrong number shows next to its bound only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from bench.gpu.worker import Context
from torch import Tensor

# Norm of all errors, relative to the norm of the exact numbers.
NORM_LIMITS: Final = {torch.float32: 2e-5, torch.float16: 1.5e-3, torch.bfloat16: 8e-3}
# Error of a number, relative to its magnitude and the root mean square of all.
LIMITS: Final = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 4e-2}


def compare(found: Tensor, exact: Tensor, dtype: torch.dtype) -> tuple[float, str]:
    """Return the relative error, and the problem or "". exact: float64. NaN in `found` never passes."""
    if found.shape != exact.shape:
        return float("inf"), f"shape {list(found.shape)} instead of {list(exact.shape)}"
    if not exact.numel():
        return 0.0, ""
    numbers = found.double()
    if bad := int((~numbers.isfinite()).sum()):
        return float("inf"), f"{bad} of {numbers.numel()} numbers are not finite"
    difference = (numbers - exact).abs()
    norm = float(exact.norm())
    error = float(difference.norm()) / norm if norm else float(difference.norm())
    spread = norm / exact.numel() ** 0.5
    excess = difference - LIMITS[dtype] * (exact.abs() + spread)
    if error > NORM_LIMITS[dtype]:
        return error, f"the norm of all errors exceeds {NORM_LIMITS[dtype]:g}"
    if (over := int((excess > 0).sum())) > 0:
        return error, f"{over} numbers have errors of up to {float(difference.max()):.3g}"
    return error, ""


def same(found: Tensor, expected: Tensor) -> tuple[float, str]:
    """Compare bit by bit; each NaN is equal to each other."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = sizes[found.element_size()]
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return float("inf"), f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
    expected = expected.contiguous().to(found.device)
    differs = found.contiguous().view(bits) != expected.view(bits)
    if found.is_floating_point():
        differs &= ~(found.isnan() & expected.isnan())
    differing = int(differs.sum())
    return (0.0, "") if not differing else (float("inf"), f"{differing} of {found.numel()} numbers differ")


def report(context: Context, kernel: str, case: str, outcome: tuple[float, str]) -> None:
    """Send the outcome of a comparison."""
    context.check(kernel, case, *outcome)


@contextmanager
def guarded(context: Context, kernel: str, case: str) -> Iterator[None]:
    """Let an error fail this case only, unless the device is broken: then all others would fail too."""
    try:
        yield
    except Exception as error:
        if context.on_gpu:
            torch.cuda.synchronize()  # raises if the device is broken
        text = " | ".join(str(error).strip().splitlines()[:3])
        context.check(kernel, case, float("inf"), f"{type(error).__name__}: {text}"[:400])


def numbers(*shape: int, dtype: torch.dtype, device: str, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)
