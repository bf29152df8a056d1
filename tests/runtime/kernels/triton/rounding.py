"""Checks that results are exact up to the one rounding of their type.

Triton's interpreter cuts numbers off when it converts them to bfloat16. Devices round to the nearest number, and so
does the interpreter if a test uses the fixture `nearest` of conftest.py.
"""

from typing import Final

import torch
from torch import Tensor

FLOAT32_ERROR: Final = 2.0**-20
"""Error of the computation before the rounding: sums of some thousand numbers."""
_HALF_SUBNORMAL: Final = 2.0**-25
"""Half of the smallest number of float16; those of the other types are smaller."""


def assert_rounded_once(found: Tensor, exact: Tensor, terms: Tensor | None = None) -> None:
    """`exact` [...] float64: not rounded. `terms`: magnitudes whose error counts, if results are differences.

    Rounding to the nearest number moves a number by at most half of the type's epsilon, relative to it.
    """
    magnitude = exact.abs() if terms is None else terms.abs()
    bound = exact.abs() * (torch.finfo(found.dtype).eps / 2) + magnitude * FLOAT32_ERROR + _HALF_SUBNORMAL
    excess = (found.double() - exact).abs() - bound
    assert (excess <= 0).all(), f"{int((excess > 0).sum())} numbers exceed the bound, by up to {excess.max():.3g}"
