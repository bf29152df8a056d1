import base64
import struct
from array import array

import pytest

from kvasir.frontend.endpoints.pooling.vector_forms import in_base64


@pytest.mark.parametrize(
    ("number", "expected"), [(65519.5, 65504.0), (65520.0, float("inf")), (-1e38, float("-inf")), (6e-8, 2.0**-24)]
)
def test_float16_is_rounded_to_the_nearest(number: float, expected: float) -> None:
    written = base64.b64decode(in_base64(array("f", [number]), "float16"))
    assert struct.unpack("<e", written) == (expected,)
